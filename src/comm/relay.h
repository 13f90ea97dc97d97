// Relay: serves the ranks below a rank in the tree of ranks (tree.h). One thread admits the ranks directly below,
// forwards frames between them and rank 0, and detects which of them are lost or silent. It makes no decisions: rank 0
// does (rendezvous_server.h).
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/channel.h"
#include "comm/handshake.h"
#include "comm/tree.h"

namespace athanor {

constexpr double kSecondsToLeave = 10;  // limit for the ranks below to leave, after this one has left

// A frame from a rank, or from its parent about it: j(oined), l(ost), s(ilent), t(rusted no more: the reason).
struct RankFrame {
  int rank = 0;
  Frame frame;
};
Frame bundle(const std::vector<RankFrame>&);  // into one frame of kind m(any)
// Throws Error for a frame that is about neither `sender` nor a rank below it.
std::vector<RankFrame> unbundle(const Frame&, const RankTree&, int sender);

class Relay {
 public:
  // up: called on the relay thread with each frame that goes to rank 0. silence: allowed seconds without a heartbeat.
  Relay(Fd listener, const std::string& secret, int rank, RankTree, double silence, std::function<void(Frame)> up);
  ~Relay() { leave(); }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  int port() const { return port_; }
  void down(Frame);  // sends to all ranks below; an a(bort) also to ranks that connect later
  void leave();      // returns when all ranks below have left, or after kSecondsToLeave
  void disappear();  // leaves at once, as if the process had ended

 private:
  struct Child {
    std::optional<Channel> channel;
    bool came = false;
    Deadline beat = {};  // time of its last message
  };
  void serve();
  void turn();
  void tell();
  void join(Guest);
  void read(int rank);
  void take(int rank, Frame);
  void lose(int rank, char kind, const std::string& why = "");
  void pass_on();
  bool finished() const;
  int first() const { return tree_.first_child(rank_); }
  Child& child(int rank) { return children_[size_t(rank - first())]; }

  Doorkeeper door_;
  const int port_, rank_;
  const RankTree tree_;
  const double silence_;
  const std::function<void(Frame)> up_;
  std::vector<Child> children_;
  std::vector<RankFrame> said_;       // frames to be passed up in this iteration
  std::map<int, std::string> beats_;  // latest heartbeat of each rank, passed up in batches
  Deadline now_, next_beat_, next_beats_up_;
  std::optional<Frame> abort_;
  Fd wake_;
  std::mutex mutex_;           // guards the members below
  std::vector<Frame> outbox_;  // frames for the ranks below
  std::optional<Deadline> stop_;
  std::thread thread_;
};

// For a polling thread: sets `looked` to now and returns by how much the poll was late. A late poll means that this
// thread, perhaps the whole machine, was suspended; that time must not count against any rank.
Clock::duration held_up(Deadline* looked);

}  // namespace athanor
