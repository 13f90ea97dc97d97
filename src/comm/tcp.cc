#include "comm/tcp.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/int.h"
#include "base/rng.h"
#include "comm/reduce.h"

namespace athanor {
namespace {

constexpr int64_t kBlockBytes = 1 << 18;  // of one rank's contribution at a time: bounds the memory of reductions
enum Op : uint32_t { kAllReduce, kAllGather, kReduceScatter, kMessage, kBroadcast, kBarrier };
constexpr const char* kOps[] = {"all_reduce", "all_gather", "reduce_scatter", "send", "broadcast", "barrier"};

// Before every transfer, so that ranks that do different things stop instead of exchanging garbage.
struct Header {
  uint64_t group = 0, call = 0, bytes = 0;
  uint32_t op = 0, dtype = 0;
  bool operator==(const Header&) const = default;
};

// Header and bytes on their way to or from one peer.
struct Transfer {
  int peer;  // rank of the world
  std::byte* data;
  Header header;
  size_t done = 0;
  Header arrived = {};
  size_t total() const { return sizeof(Header) + header.bytes; }
  bool ended() const { return done == total(); }
};

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// The connections of one rank to all others.
class Connections {
 public:
  Connections(Rendezvous& rendezvous, const std::string& interfaces);
  Rendezvous& rendezvous() { return rendezvous_; }
  // Moves everything both ways at once.
  void run(std::vector<Transfer>& sends, std::vector<Transfer>& receives);

 private:
  void connect(const std::vector<std::string>& endpoints, const std::string& secret);
  bool push(Transfer&);
  bool pull(Transfer&);
  void lost(int peer);
  Rendezvous& rendezvous_;
  std::vector<Fd> peers_;
};

Connections::Connections(Rendezvous& rendezvous, const std::string& interfaces)
    : rendezvous_(rendezvous), peers_(size_t(rendezvous.size())) {
  const RankInfo& me = rendezvous.options().ranks;
  auto listener = listen_on(is_loopback(rendezvous.address()) && is_loopback(me.host), 0);
  if (!listener) throw Error("tcp: this machine has no free port");
  const std::string address = interfaces.empty() ? rendezvous.address() : interface_address(interfaces);
  // One secret of this very run for the connections: known to those who were let in.
  const auto endpoints = rendezvous.exchange("tcp endpoint", cat("[", address, "]:", port_of(*listener)));
  const std::string secret = rendezvous.options().secret();
  connect({endpoints.begin(), endpoints.begin() + me.rank}, secret);
  Doorkeeper door(std::move(*listener), secret, Purpose::data);
  const Deadline deadline = after(rendezvous.options().timeout);
  for (int missing = me.world - 1 - me.rank; missing > 0;) {
    std::vector<pollfd> fds = {{rendezvous.failure_fd(), POLLIN, 0}};
    door.add_to(fds);
    poll(fds.data(), nfds_t(fds.size()), std::min(100, milliseconds_left(deadline)));
    rendezvous.throw_if_failed();
    for (Guest& guest : door.admit()) {
      if (guest.rank <= me.rank || guest.rank >= me.world || peers_[size_t(guest.rank)]) continue;
      peers_[size_t(guest.rank)] = std::move(guest.fd);
      --missing;
    }
    if (Clock::now() > deadline) throw Error("tcp: some ranks did not connect in time", Exit::peer_lost);
  }
  rendezvous.barrier("tcp connected");
}

void Connections::connect(const std::vector<std::string>& endpoints, const std::string& secret) {
  const RankInfo& me = rendezvous_.options().ranks;
  const Deadline deadline = after(rendezvous_.options().timeout);
  for (size_t peer = 0; peer < endpoints.size(); ++peer) {
    std::string why;
    const Endpoint to = parse_endpoint(endpoints[peer]);
    while (!peers_[peer]) {
      peers_[peer] = enter(to, secret, Purpose::data, me.rank, me.world, deadline, &why);
      rendezvous_.throw_if_failed();
      if (!peers_[peer] && Clock::now() > deadline)
        throw Error(cat("rank ", me.rank, " cannot reach rank ", peer, " at ", endpoints[peer], ": ", why,
                        "; a firewall may close its ports, or ATHANOR_SOCKET_IFNAME should name another interface"),
                    Exit::peer_lost);
    }
  }
}

void Connections::lost(int peer) {
  rendezvous_.throw_lost(cat("rank ", peer, " is gone: it closed the connection to rank ", rendezvous_.rank()));
}

// True if bytes moved.
bool Connections::push(Transfer& t) {
  const bool head = t.done < sizeof(Header);
  const void* from = head ? reinterpret_cast<const std::byte*>(&t.header) + t.done : t.data + (t.done - sizeof(Header));
  const size_t bytes = (head ? sizeof(Header) : t.total()) - t.done;
  const ssize_t n = send(peers_[size_t(t.peer)].get(), from, bytes, MSG_NOSIGNAL);
  if (n < 0 && !would_block(errno)) lost(t.peer);
  if (n > 0) t.done += size_t(n);
  return n > 0;
}

bool Connections::pull(Transfer& t) {
  const bool head = t.done < sizeof(Header);
  void* to = head ? reinterpret_cast<std::byte*>(&t.arrived) + t.done : t.data + (t.done - sizeof(Header));
  const size_t bytes = (head ? sizeof(Header) : t.total()) - t.done;
  const ssize_t n = recv(peers_[size_t(t.peer)].get(), to, bytes, 0);
  if (n == 0 || (n < 0 && !would_block(errno))) lost(t.peer);
  if (n > 0) t.done += size_t(n);
  if (head && t.done == sizeof(Header) && t.arrived != t.header) {
    const Header& h = t.arrived;
    throw Error(cat("rank ", t.peer, " calls ", h.op < std::size(kOps) ? kOps[h.op] : "something", " of ", h.bytes,
                    " bytes (call ", h.call, ") where rank ", rendezvous_.rank(), " calls ", kOps[t.header.op], " of ",
                    t.header.bytes, " bytes (call ", t.header.call,
                    "): the ranks have different configurations or data"));
  }
  return n > 0;
}

void Connections::run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) {
  const Rendezvous::Waiting waiting(rendezvous_);
  std::vector<pollfd> fds;
  for (;;) {
    for (Transfer& t : sends)
      while (!t.ended() && push(t)) {
      }
    for (Transfer& t : receives)
      while (!t.ended() && pull(t)) {
      }
    fds.assign(1, {rendezvous_.failure_fd(), POLLIN, 0});
    for (const Transfer& t : sends)
      if (!t.ended()) fds.push_back({peers_[size_t(t.peer)].get(), POLLOUT, 0});
    for (const Transfer& t : receives)
      if (!t.ended()) fds.push_back({peers_[size_t(t.peer)].get(), POLLIN, 0});
    if (fds.size() == 1) return;
    poll(fds.data(), nfds_t(fds.size()), -1);
    if (fds[0].revents != 0) rendezvous_.throw_if_failed();
  }
}

class Tcp final : public Communicator {
 public:
  Tcp(std::shared_ptr<Connections> connections, std::vector<int> members, int rank, uint64_t group)
      : connections_(std::move(connections)), members_(std::move(members)), rank_(rank), group_(group) {}
  int rank() const override { return rank_; }
  int size() const override { return int(members_.size()); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    struct Wish {
      int32_t color, key;
    };
    std::vector<Wish> all(members_.size());
    Wish mine{color, key};
    all_gather({all.data(), DType::i32, {int64_t(all.size()) * 2}}, {&mine, DType::i32, {2}}, Lane::compute);
    std::vector<int> group;
    for (int r = 0; r < size(); ++r)
      if (all[size_t(r)].color == color) group.push_back(r);
    std::stable_sort(group.begin(), group.end(), [&](int x, int y) { return all[size_t(x)].key < all[size_t(y)].key; });
    const int rank = int(std::find(group.begin(), group.end(), rank_) - group.begin());
    for (int& r : group) r = members_[size_t(r)];
    return std::make_unique<Tcp>(connections_, std::move(group), rank, stream_of(cat(group_, " ", call_, " ", color)));
  }

  void all_reduce(Tensor x, Reduce how, Lane) override {
    const int64_t block = std::max<int64_t>(1, kBlockBytes / int64_t(size_of(x.dtype))) * size();
    for (int64_t lo = 0; lo < x.numel(); lo += block)
      reduce_block(x.view({x.numel()}).slice(lo, std::min(x.numel(), lo + block)), how);
  }

  void reduce_scatter(Tensor shard, Tensor full, Reduce how, Lane) override {
    CHECK(full.numel() == shard.numel() * size(), "reduce_scatter: ", full.shape, " into ", size(), " shards of ",
          shard.shape);
    const int64_t n = shard.numel(), block = std::max<int64_t>(1, kBlockBytes / int64_t(size_of(shard.dtype)));
    for (int64_t lo = 0; lo < n; lo += block) {
      const int64_t hi = std::min(n, lo + block);
      exchange_and_reduce(kReduceScatter, how, shard.dtype, hi - lo, shard.at(lo), [&](int r) {
        return Part{full.at(r * n + lo), hi - lo};
      });
    }
  }

  void all_gather(Tensor full, Tensor shard, Lane) override {
    CHECK(full.numel() == shard.numel() * size(), "all_gather: ", size(), " shards of ", shard.shape, " into ",
          full.shape);
    void* own = full.at(rank_ * shard.numel());
    if (own != shard.data && shard.bytes()) std::memmove(own, shard.data, shard.bytes());
    std::vector<Part> parts;
    for (int r = 0; r < size(); ++r) parts.push_back({full.at(r * shard.numel()), shard.numel()});
    gather(kAllGather, parts, shard.dtype);
  }

  void broadcast(Tensor x, int root, Lane) override {
    CHECK(root >= 0 && root < size(), "broadcast: root ", root, " of ", size());
    const Header h = header(kBroadcast, x.dtype, x.bytes());
    std::vector<Transfer> sends, receives;
    if (rank_ != root) receives.push_back(transfer(root, x.data, h));
    for (int r = 0; rank_ == root && r < size(); ++r)
      if (r != root) sends.push_back(transfer(r, x.data, h));
    connections_->run(sends, receives);
  }

  // Messages have an order of their own between two ranks, apart from the group's calls.
  void send(Tensor x, int dst, Lane) override {
    std::vector<Transfer> sends = {message(dst, x)}, none;
    connections_->run(sends, none);
  }
  void recv(Tensor x, int src, Lane) override {
    std::vector<Transfer> receives = {message(src, x)}, none;
    connections_->run(none, receives);
  }
  void exchange(Tensor out, Tensor in, int with, Lane) override {
    std::vector<Transfer> sends = {message(with, out)}, receives = {message(with, in)};
    connections_->run(sends, receives);
  }
  void barrier() override { gather(kBarrier, std::vector<Part>(members_.size()), DType::u8); }

 private:
  struct Part {
    void* data = nullptr;
    int64_t numel = 0;
  };
  int peer(int rank) const {
    CHECK(rank >= 0 && rank < size() && rank != rank_, "rank ", rank_, " of ", size(), " has no peer ", rank);
    return rank;
  }
  Header header(Op op, DType dtype, size_t bytes) { return {group_, call_++, bytes, op, uint32_t(dtype)}; }
  Transfer transfer(int rank, void* data, const Header& h) const {
    return {members_[size_t(rank)], static_cast<std::byte*>(data), h};
  }

  Transfer message(int with, const Tensor& x) const {
    return transfer(peer(with), x.data, {group_, 0, x.bytes(), kMessage, uint32_t(x.dtype)});
  }

  // Own part to everybody, everybody's part from them.
  void gather(Op op, const std::vector<Part>& parts, DType dtype) {
    Header h = header(op, dtype, 0);
    std::vector<Transfer> sends, receives;
    const auto add = [&](std::vector<Transfer>& to, int rank, const Part& part) {
      h.bytes = size_t(part.numel) * size_of(dtype);
      to.push_back(transfer(rank, part.data, h));
    };
    for (int r = 0; r < size(); ++r)
      if (r != rank_) add(sends, r, parts[size_t(rank_)]), add(receives, r, parts[size_t(r)]);
    connections_->run(sends, receives);
  }

  // Rank r's share of the result is what part_of(r) names; ours of n elements goes to out.
  template <class PartOf>
  void exchange_and_reduce(Op op, Reduce how, DType dtype, int64_t n, void* out, PartOf part_of) {
    Header h = header(op, dtype, 0);
    const size_t bytes = size_t(n) * size_of(dtype);
    arrived_.resize(bytes * size_t(size()));
    std::vector<Transfer> sends, receives;
    std::vector<const void*> contributions;
    for (int r = 0; r < size(); ++r) {
      const Part theirs = part_of(r);
      std::byte* slot = arrived_.data() + bytes * size_t(r);
      contributions.push_back(r == rank_ ? theirs.data : slot);
      if (r == rank_) continue;
      h.bytes = size_t(theirs.numel) * size_of(dtype);
      sends.push_back(transfer(r, theirs.data, h));
      h.bytes = bytes;
      receives.push_back(transfer(r, slot, h));
    }
    connections_->run(sends, receives);
    reduce_in_order(out, contributions, n, dtype, how);
  }

  void reduce_block(Tensor x, Reduce how) {
    const auto begin = [&](int r) { return x.numel() * r / size(); };
    std::vector<Part> parts;
    for (int r = 0; r < size(); ++r) parts.push_back({x.at(begin(r)), begin(r + 1) - begin(r)});
    const Part own = parts[size_t(rank_)];
    exchange_and_reduce(kAllReduce, how, x.dtype, own.numel, own.data, [&](int r) { return parts[size_t(r)]; });
    gather(kAllReduce, parts, x.dtype);
  }

  std::shared_ptr<Connections> connections_;
  std::vector<int> members_;  // ranks of the world
  int rank_;
  uint64_t group_, call_ = 0;
  std::vector<std::byte> arrived_;
};

}  // namespace

std::unique_ptr<Communicator> make_tcp(Rendezvous& rendezvous, const std::string& interfaces) {
  std::vector<int> members;
  for (int r = 0; r < rendezvous.size(); ++r) members.push_back(r);
  return std::make_unique<Tcp>(std::make_shared<Connections>(rendezvous, interfaces), std::move(members),
                               rendezvous.rank(), 0);
}

}  // namespace athanor
