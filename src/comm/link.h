// A connection that carries tensors to and from one other rank: header, data, tag over both. Received data is valid
// only once its tag has been verified.
#pragma once
#include "comm/seal.h"
#include "comm/socket.h"
#include "comm/wire.h"

namespace athanor {

class Link {
 public:
  enum class Outcome { moved, waiting, closed };
  Link(Fd fd, Session session) : fd_(std::move(fd)), session_(std::move(session)) {}
  const Fd& fd() const { return fd_; }
  // Transfer as much as possible without blocking. At most one transfer per direction at a time.
  Outcome push(Transfer&);
  // Throws Error if the header is not the expected one or the tag is wrong.
  Outcome pull(Transfer&, int rank);

 private:
  Fd fd_;
  Session session_;
  Tag sent_ = {}, received_ = {};  // tags of the current transfers
};

bool ended(const Transfer&);

}  // namespace athanor
