// A connection of the rendezvous: authenticated frames in both directions.
#pragma once
#include <optional>
#include <string>

#include "comm/seal.h"
#include "comm/socket.h"

namespace athanor {

// On the wire: u32 length of kind and payload (without the tag), one letter for the kind, payload, tag. Numbers are
// little-endian.
struct Frame {
  char kind = 0;
  std::string payload;
};

class Channel {
 public:
  Channel(Fd fd, Session session) : pipe_(std::move(fd)), session_(std::move(session)) {}
  pollfd poll_entry() const { return {pipe_.fd().get(), pipe_.wanted(), 0}; }
  void write(const Frame&);
  bool flushed() const { return pipe_.flushed(); }
  bool advance() { return pipe_.advance(); }
  // The first complete frame received, if any. Throws Error for an implausible length, and for a frame whose tag is
  // wrong: not sent by the peer, or not at this position.
  std::optional<Frame> take();

 private:
  Pipe pipe_;
  Session session_;
};

}  // namespace athanor
