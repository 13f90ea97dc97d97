// A connection of the rendezvous: frames both ways, each with its seal.
#pragma once
#include <optional>
#include <string>

#include "comm/seal.h"
#include "comm/socket.h"

namespace athanor {

// On the wire: u32 length of what follows but for the tag, one letter for the kind, payload, tag. All numbers
// little-endian.
struct Frame {
  char kind = 0;
  std::string payload;
};

class Channel {
 public:
  Channel(Fd fd, Session session) : pipe_(std::move(fd)), session_(session) {}
  pollfd poll_entry() const { return {pipe_.fd().get(), pipe_.wanted(), 0}; }
  void write(const Frame&);
  bool flushed() const { return pipe_.flushed(); }
  bool advance() { return pipe_.advance(); }
  // The first whole frame of those that have come. Throws Error for a length beyond reason, and for a frame that does
  // not come from the other end, or not in this place.
  std::optional<Frame> take();

 private:
  Pipe pipe_;
  Session session_;
};

}  // namespace athanor
