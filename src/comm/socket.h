// TCP sockets: listening and connecting over IPv4 and IPv6, transfers that end at a deadline, fields of payloads.
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
Clock::duration duration_of(double seconds);  // at most 30 years: a longer time would overflow the clock
Deadline after(double seconds);
int milliseconds_left(Deadline);  // for poll(): not negative, rounded up

// A listener on one numeric address of this machine, or on all (""). Port 0: any free one. nullopt: the port is in use.
std::optional<Fd> listen_on(const std::string& address, int port);
// The address to listen on so that connections to this name arrive: its loopback address, or the address of this
// machine that it resolves to; "" (all addresses) if it resolves to no address of this machine, e.g. a name known only
// here.
std::string listening_address(const std::string& host);
// An inherited listener. Throws Error(usage) if fd does not listen on that port.
Fd inherited_listener(int fd, int port);
int port_of(const Fd& listener);
Fd accept_from(const Fd& listener);  // empty: no pending connection, or see errno

// Tries every address of the name once; for a loopback name only rank 0's listening address. Empty on failure, with the
// reason in *why.
Fd connect_to(const Endpoint&, Deadline, std::string* why);
// Numeric addresses of this end, and of the peer. Endpoints are "[address]:port".
std::string local_address(const Fd& connected);
std::string remote_address(const Fd& connected);
std::string local_endpoint(const Fd& connected);
std::string remote_endpoint(const Fd& connected);
// Numeric address of the first interface whose name starts with an entry of the list: "eth,ib0"; "=eth0" means the
// whole name, "^docker,lo" all but these (NCCL_SOCKET_IFNAME's rules). Throws Error(usage) if there is none.
std::string interface_address(const std::string& list);

// Both return false if the peer has closed the connection or the deadline has passed.
bool send_all(const Fd&, const void* data, size_t bytes, Deadline);
bool recv_all(const Fd&, void* data, size_t bytes, Deadline);

// Buffered non-blocking input and output, for event loops.
class Pipe {
 public:
  static constexpr size_t kMostBytesOfATurn = 1 << 20;
  explicit Pipe(Fd fd) : fd_(std::move(fd)) {}
  const Fd& fd() const { return fd_; }
  Fd take_fd() { return std::move(fd_); }
  short wanted() const { return short(out_.empty() ? POLLIN : POLLIN | POLLOUT); }
  void write(std::string_view bytes) { out_.append(bytes); }
  bool flushed() const { return out_.empty(); }
  // Transfers what is ready, but receives at most `most` bytes per call. False: closed by the peer or broken, and all
  // input has been read.
  bool advance(size_t most = kMostBytesOfATurn);
  std::string& received() { return in_; }

 private:
  Fd fd_;
  std::string in_, out_;
};

// Fields of a payload.
void put_u64(std::string& out, uint64_t value);
bool would_block(int error);  // a transfer that should be retried

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
