// Wire: the part of a host-memory transport that transfers data between this rank and others. Everything above it, the
// calls of a Communicator, is shared (direct.cc), so results are bitwise the same on every wire.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/tree.h"

namespace athanor {

enum class Collective : uint32_t { all_reduce, all_gather, reduce_scatter, message, broadcast, barrier, all_to_all };
const char* name_of(Collective);

// Sent before every transfer: ranks that make different calls stop instead of exchanging garbage.
struct Header {
  uint64_t group = 0, call = 0, bytes = 0;
  uint32_t op = 0, dtype = 0;
  bool operator==(const Header&) const = default;
};

// Header and data of a transfer to or from one peer.
struct Transfer {
  int peer;  // world rank
  std::byte* data;
  Header header;
  size_t done = 0;  // bytes, counted by the wire
  bool ended = false;
  bool started = false;     // an asynchronous send: Wire::start()
  bool backlogged = false;  // its data goes through another ring than its header (shared_link.cc)
  Header arrived = {};
};

class Wire {
 public:
  virtual ~Wire() = default;
  // Runs all transfers, both directions concurrently; those between two ranks in order. Throws Error(peer_lost) if a
  // rank is lost meanwhile.
  virtual void run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) = 0;
  // Starts an asynchronous send: run() makes progress on it, but does not wait for it. Later sends to the same peer are
  // ordered after it. finish() returns when at most `under_way` asynchronous sends to the peer are unfinished.
  virtual void start(Transfer send) = 0;
  virtual void finish(int peer, int64_t under_way) = 0;
};

// Throws if the peer's header differs from the one that this rank expects.
void require_same_call(const Transfer& received, int rank);

// Detects which transfers of a wire begin a call; in a tree, a call has several transfers.
class Calls {
 public:
  bool begins(const Header& h) {
    const bool same = Collective(h.op) != Collective::message && h.group == group_ && h.call == call_;
    group_ = h.group, call_ = h.call;
    return !same;
  }

 private:
  uint64_t group_ = 0, call_ = ~uint64_t{0};
};

// All ranks of a wire, for messages between hosts: everything goes through the tree, large data in slices. Groups split
// from it are for tensors: only small tensors, barriers and broadcasts go through the tree.
std::unique_ptr<Communicator> make_direct(std::shared_ptr<Wire>, int rank, RankTree);

}  // namespace athanor
