#include "comm/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/log.h"

namespace athanor {
namespace {

constexpr int kBacklog = 1024;
constexpr std::string_view kNameRemedy =
    "set MASTER_ADDR to a name or address of rank 0's machine that all machines know";

union Address {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
  sockaddr_storage storage;
};

Fd new_socket(int family) { return Fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

void set_option(const Fd& fd, int level, int name, int value) {
  setsockopt(fd.get(), level, name, &value, sizeof value);
}

// Sends small messages without delay; detects a vanished machine within minutes even on an idle connection.
void tune(const Fd& fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 6);
}

std::string numeric(const Address& a) {
  char text[INET6_ADDRSTRLEN] = "";
  if (a.any.sa_family == AF_INET) inet_ntop(AF_INET, &a.v4.sin_addr, text, sizeof text);
  if (a.any.sa_family == AF_INET6) inet_ntop(AF_INET6, &a.v6.sin6_addr, text, sizeof text);
  const std::string address = text;
  return address.starts_with("::ffff:") && address.find('.') != std::string::npos ? address.substr(7) : address;
}

int port_of(const Address& a) { return ntohs(a.any.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port); }

std::string endpoint(const Address& a) { return cat('[', numeric(a), "]:", port_of(a)); }

Address to_address(const sockaddr& from) {
  Address a{};
  if (from.sa_family == AF_INET) std::memcpy(&a, &from, sizeof a.v4);
  if (from.sa_family == AF_INET6) std::memcpy(&a, &from, sizeof a.v6);
  return a;
}

// Address of one end of a socket; may be empty if the peer has disconnected.
Address address_of(const Fd& fd, int (*ask)(int, sockaddr*, socklen_t*)) {
  Address a{};
  socklen_t bytes = sizeof a;
  ask(fd.get(), &a.any, &bytes);
  return a;
}

Fd listen_at(const Address& address, socklen_t bytes, int* error) {
  Fd fd = new_socket(address.any.sa_family);
  if (!fd) return *error = errno, Fd();
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.any.sa_family == AF_INET6) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(fd.get(), &address.any, bytes) != 0 || listen(fd.get(), kBacklog) != 0) return *error = errno, Fd();
  return fd;
}

// Waits until fd is ready or the deadline has passed.
bool ready(const Fd& fd, short events, Deadline deadline) {
  pollfd p{fd.get(), events, 0};
  for (;;) {
    const int n = poll(&p, 1, milliseconds_left(deadline));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

Fd connect_address(const addrinfo& a, Deadline deadline, std::string* why) {
  Fd fd = new_socket(a.ai_family);
  if (!fd) return *why = std::strerror(errno), Fd();
  if (connect(fd.get(), a.ai_addr, a.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return *why = std::strerror(errno), Fd();
    if (!ready(fd, POLLOUT, deadline)) return *why = "no answer", Fd();
    int error = 0;
    socklen_t bytes = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) return *why = std::strerror(error), Fd();
  }
  tune(fd);
  return fd;
}

}  // namespace

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

Clock::duration duration_of(double seconds) {
  constexpr double kMost = 1e9;
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, kMost)));
}

Deadline after(double seconds) { return Clock::now() + duration_of(seconds); }

int milliseconds_left(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return int(std::clamp<int64_t>(left, 0, 1 << 30));
}

std::optional<Fd> listen_on(const std::string& address, int port) {
  Address v6{}, v4{};
  v6.v6.sin6_family = AF_INET6, v6.v6.sin6_port = htons(uint16_t(port)), v6.v6.sin6_addr = in6addr_any;
  v4.v4.sin_family = AF_INET, v4.v4.sin_port = htons(uint16_t(port)), v4.v4.sin_addr.s_addr = htonl(INADDR_ANY);
  const bool any = address.empty(), is_v4 = !any && inet_pton(AF_INET, address.c_str(), &v4.v4.sin_addr) == 1;
  CHECK(any || is_v4 || inet_pton(AF_INET6, address.c_str(), &v6.v6.sin6_addr) == 1, "no numeric address: ", address);
  int error = EAFNOSUPPORT;
  Fd fd;
  if (!is_v4) fd = listen_at(v6, sizeof v6.v6, &error);  // both families; machines without IPv6 use IPv4
  if (is_v4 || (any && !fd && error != EADDRINUSE)) fd = listen_at(v4, sizeof v4.v4, &error);
  if (!fd && error == EADDRINUSE) return std::nullopt;
  if (!fd) throw Error(cat("listening on port ", port, any ? "" : cat(" of ", address), ": ", std::strerror(error)));
  return fd;
}

std::string listening_address(const std::string& host) {
  if (is_loopback(host)) return loopback_address(host);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found)) {
    log::warn("rendezvous: ", host, ", the name of this machine, cannot be resolved here: ", gai_strerror(error), "; ",
              kNameRemedy);
    return "";
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, freeaddrinfo);
  ifaddrs* interfaces = nullptr;
  CHECK(getifaddrs(&interfaces) == 0, std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> ours(interfaces, freeifaddrs);
  for (const addrinfo* a = found; a; a = a->ai_next) {
    const std::string address = numeric(to_address(*a->ai_addr));
    if (is_loopback(address)) continue;  // useless to other machines
    for (const ifaddrs* i = interfaces; i; i = i->ifa_next)
      if (i->ifa_addr && numeric(to_address(*i->ifa_addr)) == address) return address;
  }
  return "";
}

Fd inherited_listener(int number, int port) {
  Fd fd(fcntl(number, F_DUPFD_CLOEXEC, 0));
  int listens = 0;
  socklen_t bytes = sizeof listens;
  if (!fd || getsockopt(fd.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || !listens || port_of(fd) != port)
    throw Error(cat("ATHANOR_LISTENER: descriptor ", number, " is not a socket that listens on port ", port,
                    "; only `athanor launch` sets this variable: unset it"),
                Exit::usage);
  close(number);
  return fd;
}

int port_of(const Fd& listener) { return port_of(address_of(listener, getsockname)); }

Fd accept_from(const Fd& listener) {
  Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd) tune(fd);
  return fd;
}

Fd connect_to(const Endpoint& to, Deadline deadline, std::string* why) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV;
  const std::string loopback = loopback_address(to.host);
  if (!loopback.empty()) hints.ai_flags = AI_NUMERICSERV;  // AI_ADDRCONFIG does not count loopback addresses
  const std::string& host = loopback.empty() ? to.host : loopback;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(to.port).c_str(), &hints, &found)) {
    *why = cat("the name cannot be resolved: ", gai_strerror(error), "; ", kNameRemedy);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, freeaddrinfo);
  Fd fd;
  for (const addrinfo* a = found; a && !fd; a = a->ai_next) fd = connect_address(*a, deadline, why);
  return fd;
}

std::string local_address(const Fd& connected) { return numeric(address_of(connected, getsockname)); }
std::string remote_address(const Fd& connected) { return numeric(address_of(connected, getpeername)); }
std::string local_endpoint(const Fd& connected) { return endpoint(address_of(connected, getsockname)); }
std::string remote_endpoint(const Fd& connected) { return endpoint(address_of(connected, getpeername)); }

std::string interface_address(const std::string& list) {
  const bool exclude = list.starts_with('^');
  std::string names = list.substr(exclude ? 1 : 0);
  const bool exact = names.starts_with('=');
  if (exact) names.erase(0, 1);
  const auto listed = [&](std::string_view name) {
    for (size_t at = 0; at <= names.size();) {
      const size_t comma = std::min(names.find(',', at), names.size());
      const std::string_view entry = std::string_view(names).substr(at, comma - at);
      if (!entry.empty() && (exact ? name == entry : name.starts_with(entry))) return true;
      at = comma + 1;
    }
    return false;
  };
  ifaddrs* found = nullptr;
  CHECK(getifaddrs(&found) == 0, std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(found, freeifaddrs);
  for (const ifaddrs* i = found; i; i = i->ifa_next) {
    if (!i->ifa_addr || (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)) continue;
    const Address a = to_address(*i->ifa_addr);
    // link-local addresses need a scope
    if (a.any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&a.v6.sin6_addr)) continue;
    if (listed(i->ifa_name) != exclude) return numeric(a);
  }
  throw Error(cat("no network interface with an address matches \"", list, "\"; `ip address` lists them"), Exit::usage);
}

bool send_all(const Fd& fd, const void* data, size_t bytes, Deadline deadline) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = send(fd.get(), at, bytes, MSG_NOSIGNAL);
    if (n < 0 && !would_block(errno)) return false;
    if (n < 0 && !ready(fd, POLLOUT, deadline)) return false;
    if (n > 0) at += n, bytes -= size_t(n);
  }
  return true;
}

bool recv_all(const Fd& fd, void* data, size_t bytes, Deadline deadline) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = recv(fd.get(), at, bytes, 0);
    if (n == 0 || (n < 0 && !would_block(errno))) return false;
    if (n < 0 && !ready(fd, POLLIN, deadline)) return false;
    if (n > 0) at += n, bytes -= size_t(n);
  }
  return true;
}

bool Pipe::advance(size_t most) {
  bool open = true;
  size_t sent = 0;
  while (sent < out_.size()) {
    const ssize_t n = send(fd_.get(), out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL);
    open = n >= 0 || would_block(errno);
    if (n <= 0) break;
    sent += size_t(n);
  }
  out_.erase(0, sent);
  char buffer[16384];  // read in any case: a closed peer may have sent its reason first
  while (most > 0) {
    const ssize_t n = recv(fd_.get(), buffer, std::min(most, sizeof buffer), 0);
    if (n == 0 || (n < 0 && !would_block(errno))) return false;
    if (n < 0) return open;
    in_.append(buffer, size_t(n));
    most -= size_t(n);
  }
  return true;
}

void put_u64(std::string& out, uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) out += char(value >> shift);
}

void put_text(std::string& out, std::string_view text) {
  put_u64(out, text.size());
  out.append(text);
}

uint64_t FieldReader::u64() {
  if (rest_.size() < 8) throw Error("rendezvous: a message is truncated");
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= uint64_t(uint8_t(rest_[i])) << (8 * i);
  rest_.remove_prefix(8);
  return value;
}

std::string FieldReader::text() {
  const uint64_t size = u64();
  if (rest_.size() < size) throw Error("rendezvous: a message is truncated");
  std::string text(rest_.substr(0, size));
  rest_.remove_prefix(size);
  return text;
}

}  // namespace athanor
