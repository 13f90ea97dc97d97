#include "comm/shared_link.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <new>
#include <optional>

#include "base/crypto.h"
#include "base/error.h"

namespace athanor {
namespace {

constexpr size_t kRingBytes = 1 << 18;        // per direction: both rings of a pair stay in a core's L2 cache
constexpr size_t kPublishedAtOnce = 1 << 16;  // bytes; the peer reads them while this rank writes on
constexpr double kSecondsToIntroduce = 5;     // limit for a process that has connected

// Data of asynchronous sends has a ring of its own in each direction, large enough that a send ends while both ranks
// compute. Its memory is allocated with the first such send.
constexpr size_t kBacklogBytes = 1 << 25;
constexpr uint32_t kBacklogged = uint32_t{1} << 31;  // in Header::dtype: the data is in the backlog ring

// Counters of a ring. They only grow; the writer owns `written`, the reader `read`.
struct Ring {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) std::atomic<uint32_t> writer_waits;  // the writer waits for space
  alignas(64) std::atomic<uint32_t> reader_waits;  // the reader waits for bytes
};
// Memory shared by two ranks. Index 0: what the rank that dialled writes; index 1: what the rank that was dialled
// writes.
struct SharedPair {
  Ring rings[2], backlogs[2];
  alignas(4096) std::array<std::byte, kRingBytes> bytes[2];
  alignas(4096) std::array<std::byte, kBacklogBytes> backlog_bytes[2];
};
constexpr size_t kAllocatedAtOnce = offsetof(SharedPair, backlog_bytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// The message by which the dialling rank introduces itself.
struct Introduction {
  std::array<char, 8> magic = {'a', 't', 'h', 's', 'h', 'm', '0', '1'};
  uint64_t bytes = sizeof(SharedPair);
  int32_t from = 0, to = 0;
  Digest proof = {};
};

enum Passed : int { kMemory, kBellOfGuest, kBellOfHost, kPassed };  // descriptors in the order in which they are sent

struct Unmap {
  void operator()(SharedPair* p) const { munmap(p, sizeof(SharedPair)); }
};
using Mapping = std::unique_ptr<SharedPair, Unmap>;

Mapping map(const Fd& memory) {
  void* at = mmap(nullptr, sizeof(SharedPair), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  return Mapping(at == MAP_FAILED ? nullptr : static_cast<SharedPair*>(at));
}

Introduction introduction(const std::string& secret, int from, int to) {
  return {.from = from, .to = to, .proof = derive(secret, "shared memory", cat(from, " to ", to))};
}

// This rank's end of a ring, as its writer or as its reader.
struct RingEnd {
  Ring* ring;
  std::byte* bytes;
  size_t size;
  uint64_t position = 0;  // the counter that this rank owns

  size_t used() const { return sane(size_t(position - ring->read.load(std::memory_order_seq_cst))); }
  size_t ready() const { return sane(size_t(ring->written.load(std::memory_order_seq_cst) - position)); }
  // Writes at most n bytes, as far as they are contiguous in the ring; returns their number.
  size_t write(const std::byte* data, size_t n) {
    n = one_piece(n);
    std::memcpy(bytes + position % size, data, n);
    ring->written.store(position += n, std::memory_order_seq_cst);
    return n;
  }
  size_t read(std::byte* data, size_t n) {
    n = one_piece(n);
    std::memcpy(data, bytes + position % size, n);
    ring->read.store(position += n, std::memory_order_seq_cst);
    return n;
  }

 private:
  size_t one_piece(size_t n) const { return std::min({n, size - position % size, kPublishedAtOnce}); }
  size_t sane(size_t n) const {
    if (n > size) throw Error("shared memory: its counters are wrong: another process of this user writes to it");
    return n;
  }
};

class SharedLink final : public Link {
 public:
  SharedLink(Fd socket, Fd own_bell, Fd peer_bell, Fd file, Mapping memory, bool dialled)
      : socket_(std::move(socket)),
        own_bell_(std::move(own_bell)),
        peer_bell_(std::move(peer_bell)),
        file_(std::move(file)),
        memory_(std::move(memory)),
        way_(dialled ? 0 : 1),
        out_{&memory_->rings[way_], memory_->bytes[way_].data(), kRingBytes},
        in_{&memory_->rings[1 - way_], memory_->bytes[1 - way_].data(), kRingBytes},
        backlog_out_{&memory_->backlogs[way_], memory_->backlog_bytes[way_].data(), kBacklogBytes},
        backlog_in_{&memory_->backlogs[1 - way_], memory_->backlog_bytes[1 - way_].data(), kBacklogBytes} {}

  bool in_memory() const override { return true; }

  Outcome push(Transfer& t) override {
    if (t.done == 0) {
      t.backlogged = t.started && allocates_backlog();
      t.arrived = t.header;
      if (t.backlogged) t.arrived.dtype |= kBacklogged;
    }
    RingEnd& out = is_in_backlog(t) ? backlog_out_ : out_;
    const size_t space = out.size - out.used();
    if (gone_) return Outcome::closed;
    if (space == 0) return Outcome::waiting;
    const auto [data, bytes] = next(t, t.arrived);
    const size_t n = out.write(data, std::min(bytes, space));
    wake(out.ring->reader_waits);
    return count(t, n);
  }

  Outcome pull(Transfer& t, int rank) override {
    RingEnd& in = is_in_backlog(t) ? backlog_in_ : in_;
    const size_t ready = in.ready();
    if (ready == 0) return gone_ ? Outcome::closed : Outcome::waiting;
    const auto [data, bytes] = next(t, t.arrived);
    const bool in_header = t.done < sizeof(Header);
    const size_t n = in.read(data, std::min(bytes, ready));
    wake(in.ring->writer_waits);
    count(t, n);
    if (in_header && t.done == sizeof(Header)) {
      t.backlogged = (t.arrived.dtype & kBacklogged) != 0;
      t.arrived.dtype &= ~kBacklogged;
      require_same_call(t, rank);
    }
    return Outcome::moved;
  }

  void begin_wait(std::vector<pollfd>& fds, bool sends, bool receives) override {
    for (Ring* ring : {out_.ring, backlog_out_.ring})
      if (sends) ring->writer_waits.store(1, std::memory_order_seq_cst);
    for (Ring* ring : {in_.ring, backlog_in_.ring})
      if (receives) ring->reader_waits.store(1, std::memory_order_seq_cst);
    fds.push_back({own_bell_.get(), POLLIN, 0});
    fds.push_back({socket_.get(), POLLIN | POLLRDHUP, 0});
  }

  void end_wait() override {
    for (Ring* ring : {out_.ring, backlog_out_.ring}) ring->writer_waits.store(0, std::memory_order_relaxed);
    for (Ring* ring : {in_.ring, backlog_in_.ring}) ring->reader_waits.store(0, std::memory_order_relaxed);
    eventfd_t rung = 0;
    (void)eventfd_read(own_bell_.get(), &rung);
    char end = 0;  // nobody writes to the socket any more
    const ssize_t n = recv(socket_.get(), &end, 1, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && !would_block(errno))) gone_ = true;
  }

 private:
  static std::pair<std::byte*, size_t> next(const Transfer& t, Header& header) {
    if (t.done < sizeof(Header)) return {reinterpret_cast<std::byte*>(&header) + t.done, sizeof(Header) - t.done};
    const size_t done = t.done - sizeof(Header);
    return {t.data + done, t.header.bytes - done};
  }
  static Outcome count(Transfer& t, size_t n) {
    t.done += n;
    t.ended = t.done == sizeof(Header) + t.header.bytes;
    return Outcome::moved;
  }
  void wake(std::atomic<uint32_t>& waits) const {
    if (waits.load(std::memory_order_seq_cst) != 0 && waits.exchange(0) != 0) (void)eventfd_write(peer_bell_.get(), 1);
  }
  static bool is_in_backlog(const Transfer& t) { return t.backlogged && t.done >= sizeof(Header); }
  // Allocates the whole backlog once: running out of memory while writing to it would raise SIGBUS.
  bool allocates_backlog() {
    if (!backlog_)
      backlog_ =
          fallocate(file_.get(), 0, off_t(kAllocatedAtOnce + size_t(way_) * kBacklogBytes), off_t(kBacklogBytes)) == 0;
    return *backlog_;
  }

  Fd socket_, own_bell_, peer_bell_, file_;
  Mapping memory_;
  int way_;
  RingEnd out_, in_, backlog_out_, backlog_in_;
  std::optional<bool> backlog_;  // whether its memory could be allocated
  bool gone_ = false;            // the peer has ended; what it has written can still be read
};

// The machine in an address, "" if it is not known: see SharedEntry.
std::string machine() {
  const std::string boot = boot_id();
  std::error_code error;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", error);
  return boot.empty() || error ? "" : cat(boot, "/", network.string(), "/user ", geteuid());
}

struct UnixAddress {
  sockaddr_un name = {};
  socklen_t bytes = 0;
};
// An address in the abstract namespace: a zero byte, then the name.
UnixAddress socket_address(std::string_view name) {
  UnixAddress a;
  a.name.sun_family = AF_UNIX;
  CHECK(name.size() + 1 < sizeof a.name.sun_path, "a socket's name of ", name.size(), " bytes");
  std::memcpy(a.name.sun_path + 1, name.data(), name.size());
  a.bytes = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return a;
}

std::string_view name_in(std::string_view address) { return address.substr(address.rfind(' ') + 1); }

bool is_own_user(const Fd& socket) {
  ucred peer = {};
  socklen_t bytes = sizeof peer;
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

bool send_introduction(const Fd& socket, const Introduction& words, const std::array<int, kPassed>& fds) {
  iovec data{const_cast<Introduction*>(&words), sizeof words};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof fds)> control = {};
  msghdr message{.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.data(), .msg_controllen = control.size()};
  cmsghdr* passed = CMSG_FIRSTHDR(&message);
  passed->cmsg_level = SOL_SOCKET, passed->cmsg_type = SCM_RIGHTS, passed->cmsg_len = CMSG_LEN(sizeof fds);
  std::memcpy(CMSG_DATA(passed), fds.data(), sizeof fds);
  return sendmsg(socket.get(), &message, MSG_NOSIGNAL) == ssize_t(sizeof words);
}

// Receives `words`, and returns the descriptors that came with it; empty ones if its size is wrong, or nothing came by
// the deadline.
std::array<Fd, kPassed> take_introduction(const Fd& socket, Deadline deadline, Introduction& words) {
  std::array<Fd, kPassed> fds;
  pollfd ready{socket.get(), POLLIN, 0};
  if (poll(&ready, 1, milliseconds_left(deadline)) <= 0) return fds;
  iovec data{&words, sizeof words};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kPassed * sizeof(int))> control = {};
  msghdr message{.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.data(), .msg_controllen = control.size()};
  const ssize_t n = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      Fd owned(fd);
      if (i < fds.size()) fds[i] = std::move(owned);
    }
  }
  if (n != ssize_t(sizeof words)) fds = {};
  return fds;
}

// True if the memory has the expected size, and its owner cannot shrink it while this rank uses it.
bool is_sealed(const Fd& memory) {
  struct stat file = {};
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(memory.get(), &file) == 0 &&
         file.st_size == off_t(sizeof(SharedPair));
}

Fd sealed_memory() {
  Fd memory(memfd_create("athanor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Allocated at once, except for the backlogs: a later lack of memory would raise a signal.
  if (!memory || ftruncate(memory.get(), off_t(sizeof(SharedPair))) != 0 ||
      fallocate(memory.get(), 0, 0, off_t(kAllocatedAtOnce)) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return {};
  return memory;
}

Fd bell() { return Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

}  // namespace

SharedEntry SharedEntry::listening() {
  SharedEntry entry;
  const std::string here = machine(), name = "athanor-" + to_hex(random_bytes(16));
  const UnixAddress at = socket_address(name);
  Fd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!here.empty() && listener && bind(listener.get(), reinterpret_cast<const sockaddr*>(&at.name), at.bytes) == 0 &&
      listen(listener.get(), SOMAXCONN) == 0) {
    entry.listener_ = std::move(listener);
    entry.address_ = here + " " + name;
  }
  return entry;
}

void SharedEntry::open(std::string secret, int rank, int world) {
  secret_ = std::move(secret), rank_ = rank, world_ = world;
}

void SharedEntry::add_to(std::vector<pollfd>& fds) const {
  if (listener_) fds.push_back({listener_.get(), POLLIN, 0});
}

std::vector<SharedEntry::Guest> SharedEntry::admit() {
  std::vector<Guest> guests;
  while (listener_) {
    Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) break;
    if (!is_own_user(socket)) continue;
    Introduction words;
    std::array<Fd, kPassed> fds = take_introduction(socket, after(kSecondsToIntroduce), words);
    const Introduction want = introduction(secret_, words.from, rank_);
    const bool known = fds[kBellOfHost] && words.magic == want.magic && words.bytes == want.bytes &&
                       words.from > rank_ && words.from < world_ && words.to == rank_ &&
                       same_bytes(as_text(words.proof), as_text(want.proof));
    Mapping memory = known && is_sealed(fds[kMemory]) ? map(fds[kMemory]) : nullptr;
    const char yes = 1;
    if (!memory || send(socket.get(), &yes, 1, MSG_NOSIGNAL) != 1) continue;
    guests.push_back({words.from, std::make_unique<SharedLink>(std::move(socket), std::move(fds[kBellOfHost]),
                                                               std::move(fds[kBellOfGuest]), std::move(fds[kMemory]),
                                                               std::move(memory), false)});
  }
  return guests;
}

bool on_one_machine(const std::string& address, const std::string& other) {
  return !address.empty() && address.substr(0, address.rfind(' ')) == other.substr(0, other.rfind(' '));
}

std::unique_ptr<Link> dial_shared(const std::string& address, const std::string& secret, int from, int to,
                                  Deadline deadline) {
  const UnixAddress at = socket_address(name_in(address));
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  Fd memory = sealed_memory(), own = bell(), peers = bell();
  Mapping mapped = memory ? map(memory) : nullptr;
  if (!socket || !own || !peers || !mapped) return nullptr;
  new (mapped.get()) SharedPair;
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&at.name), at.bytes) != 0 || !is_own_user(socket) ||
      !send_introduction(socket, introduction(secret, from, to), {memory.get(), own.get(), peers.get()}))
    return nullptr;
  char answer = 0;
  if (!recv_all(socket, &answer, 1, deadline) || answer != 1) return nullptr;
  return std::make_unique<SharedLink>(std::move(socket), std::move(own), std::move(peers), std::move(memory),
                                      std::move(mapped), true);
}

}  // namespace athanor
