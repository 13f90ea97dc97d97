// Server side of a rendezvous: one thread that admits ranks, collects the texts that they exchange, and detects ranks
// that died, hang or never came. Every rank first connects here; if its parent in the tree (tree.h) is not rank 0, the
// server sends it the parent's address, the rank connects to its parent, and its frames arrive through it (relay.h).
// Frames of a rank: e(xchange), b(eat), f(ailure), q(uit), h(ere: the address to which the ranks below it connect),
// d(one here: it is connected to its parent), m(any, of itself and ranks below it); of the server: r(esult), b(eat),
// a(bort), p(arent: its address).
#pragma once
#include <map>
#include <optional>
#include <thread>

#include "comm/channel.h"
#include "comm/handshake.h"
#include "comm/relay.h"
#include "comm/tree.h"

namespace athanor {

struct ServerTimeouts {  // seconds
  double join, silence;
};

class RendezvousServer {
 public:
  RendezvousServer(Fd listener, const std::string& secret, RankTree, ServerTimeouts);
  ~RendezvousServer();  // waits until all ranks have left, or a few seconds
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;
  int port() const { return port_; }

 private:
  struct Member {
    std::optional<Channel> channel;
    bool joined = false, quit = false, waiting = false;
    // visiting: connected here until it knows its parent; in_place: connected to its parent
    bool visiting = false, in_place = false;
    std::optional<std::string> endpoint;  // address to which the ranks below it connect; "" for a leaf
    uint64_t entered = 0;
    double limit = 0;         // seconds, for its current activity
    std::string host, place;  // as reported last
    Deadline progress, beat;  // time of its last progress, and of its last message
  };
  void serve();
  void turn();
  void join(Guest);
  void read(int rank);
  void handle(int rank, const Frame&);
  void handle_of_relay(int rank, const Frame&);
  void collect(int rank, FieldReader);
  void show_parent(int rank);
  void lose(int rank);
  void blame_silent(const std::vector<int>& ranks);
  void fail(const std::string& why);
  double seconds_since(Deadline) const;  // seconds from then until now_
  void find_missing();
  void find_silent();
  void find_hanging();
  std::string name(int rank) const;  // "rank 3 (host)"
  std::string names(const std::vector<int>& ranks) const;
  bool finished() const;

  const RankTree tree_;
  Doorkeeper door_;
  int port_;
  ServerTimeouts limits_;
  Deadline started_, next_beat_;
  Deadline now_;  // all input up to here has been read, so that a slow server thread blames no rank for its own delay
  std::vector<Member> members_;
  std::map<std::string, std::vector<std::optional<std::string>>> exchanges_;
  std::string failure_;
  Fd wake_;
  std::optional<Deadline> stop_;
  std::thread thread_;
};

// "rank 3", "ranks 1, 2 and 5".
std::string rank_names(const std::vector<int>& ranks);

}  // namespace athanor
