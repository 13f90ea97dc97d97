// A connection that carries tensors to and from one other rank: header, bytes, tag of both. What a transfer has written
// into memory counts once its tag has been found right.
#pragma once
#include "comm/seal.h"
#include "comm/socket.h"
#include "comm/wire.h"

namespace athanor {

class Link {
 public:
  enum class Outcome { moved, waiting, closed };
  Link(Fd fd, Session session) : fd_(std::move(fd)), session_(session) {}
  const Fd& fd() const { return fd_; }
  // Move what can be moved of a transfer that has not ended. One each way may be under way.
  Outcome push(Transfer&);
  // Throws Error if something else comes than this rank expects, or not what the peer has sent.
  Outcome pull(Transfer&, int rank);

 private:
  Fd fd_;
  Session session_;
  Tag sent_ = {}, received_ = {};  // of the transfers under way
};

bool ended(const Transfer&);

}  // namespace athanor
