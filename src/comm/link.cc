#include "comm/link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace athanor {
namespace {

constexpr size_t kMaxAtOnce = 1 << 18;  // bytes: data is authenticated while still in the cache

size_t body(const Transfer& t) { return sizeof(Header) + t.header.bytes; }
size_t total(const Transfer& t) { return body(t) + sizeof(Tag); }

// The next bytes to transfer of header, data and tag.
struct Piece {
  std::byte* data;
  size_t bytes;
  bool is_tag;
};
Piece next_piece(const Transfer& t, Header& header, Tag& tag) {
  if (t.done < sizeof(Header)) return {reinterpret_cast<std::byte*>(&header) + t.done, sizeof(Header) - t.done, false};
  if (t.done < body(t)) return {t.data + (t.done - sizeof(Header)), std::min(body(t) - t.done, kMaxAtOnce), false};
  return {reinterpret_cast<std::byte*>(&tag) + (t.done - body(t)), total(t) - t.done, true};
}

Link::Outcome otherwise(ssize_t result) {
  return result < 0 && would_block(errno) ? Link::Outcome::waiting : Link::Outcome::closed;
}

class TcpLink final : public Link {
 public:
  TcpLink(Fd fd, Session session) : fd_(std::move(fd)), session_(std::move(session)) {}

  Outcome push(Transfer& t) override {
    const Piece piece = next_piece(t, t.header, sent_);
    const ssize_t n = send(fd_.get(), piece.data, piece.bytes, MSG_NOSIGNAL);
    if (n <= 0) return otherwise(n);
    t.done += size_t(n);
    t.ended = t.done == total(t);
    if (piece.is_tag) return Outcome::moved;
    session_.out.add(piece.data, size_t(n));
    if (t.done == body(t)) sent_ = session_.out.end();
    return Outcome::moved;
  }

  Outcome pull(Transfer& t, int rank) override {
    const Piece piece = next_piece(t, t.arrived, received_);
    const ssize_t n = recv(fd_.get(), piece.data, piece.bytes, 0);
    if (n <= 0) return otherwise(n);
    t.done += size_t(n);
    if (!piece.is_tag) session_.in.add(piece.data, size_t(n));
    if (t.done == sizeof(Header)) require_same_call(t, rank);
    if (t.done < total(t)) return Outcome::moved;
    t.ended = true;
    if (!same_bytes(as_text(session_.in.end()), as_text(received_)))
      throw Error(cat("tcp: a message from rank ", t.peer,
                      " has a wrong authentication tag: another program writes to this connection (docs/security.md)"));
    return Outcome::moved;
  }

  void begin_wait(std::vector<pollfd>& fds, bool sends, bool receives) override {
    fds.push_back({fd_.get(), short((sends ? POLLOUT : 0) | (receives ? POLLIN : 0)), 0});
  }

 private:
  Fd fd_;
  Session session_;
  Tag sent_ = {}, received_ = {};  // tags of the current transfers
};

}  // namespace

std::unique_ptr<Link> make_tcp_link(Fd fd, Session session) {
  return std::make_unique<TcpLink>(std::move(fd), std::move(session));
}

}  // namespace athanor
