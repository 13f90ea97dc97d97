// TCP sockets: listening and connecting over IPv4 and IPv6, transfers that end at a deadline, length-prefixed frames.
// Every descriptor is non-blocking; waiting is poll().
#pragma once
#include <poll.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "comm/rank_info.h"

namespace athanor {

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;
Deadline after(double seconds);
int milliseconds_left(Deadline);  // for poll: from 0, rounded up

// A listener on all addresses of this machine, or on the loopback ones alone. Port 0: any. nullopt: the port is taken.
std::optional<Fd> listen_on(bool loopback_only, int port);
int port_of(const Fd& listener);
Fd accept_from(const Fd& listener);  // empty: nobody there after all

// Tries every address of the name once. Empty on failure, with the reason in *why.
Fd connect_to(const Endpoint&, Deadline, std::string* why);
std::string local_address(const Fd& connected);  // numeric: how this machine is known to the other side
// Numeric address of the first interface whose name starts with an entry of the list: "eth,ib0"; "=eth0" means the
// whole name, "^docker,lo" all but these (NCCL_SOCKET_IFNAME's rules). Throws Error(usage) if there is none.
std::string interface_address(const std::string& list);

// False: the other side has closed, or the deadline has passed.
bool send_all(const Fd&, const void* data, size_t bytes, Deadline);
bool recv_all(const Fd&, void* data, size_t bytes, Deadline);

// Bytes that arrive and leave as the other side is ready; for event loops.
class Pipe {
 public:
  explicit Pipe(Fd fd) : fd_(std::move(fd)) {}
  const Fd& fd() const { return fd_; }
  Fd take_fd() { return std::move(fd_); }
  short wanted() const { return short(out_.empty() ? POLLIN : POLLIN | POLLOUT); }
  void write(std::string_view bytes) { out_.append(bytes); }
  bool flushed() const { return out_.empty(); }
  bool advance();  // moves what can be moved; false: closed by the other side, or broken
  std::string& received() { return in_; }

 private:
  Fd fd_;
  std::string in_, out_;
};

// Frames: u32 length of what follows, one letter for the kind, payload. All numbers little-endian.
struct Frame {
  char kind = 0;
  std::string payload;
};
std::string to_bytes(const Frame&);
// Takes the first whole frame off the buffer. Throws Error for a length beyond reason.
std::optional<Frame> take_frame(std::string& buffer);

// Fields of a payload.
void put_u64(std::string& out, uint64_t value);
void put_text(std::string& out, std::string_view text);
class FieldReader {  // throws Error when the payload ends early
 public:
  explicit FieldReader(std::string_view payload) : rest_(payload) {}
  uint64_t u64();
  std::string text();

 private:
  std::string_view rest_;
};

}  // namespace athanor
