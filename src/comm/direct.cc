// Communicator calls over a wire. Reductions are in rank order. Tensors are exchanged directly, every rank with every
// other; broadcasts, barriers and small tensors go through a tree (tree.h), so that a common decision of a thousand
// ranks takes each of them a few messages. Messages between hosts always go through the tree, whatever their size.
#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "comm/reduce.h"
#include "comm/tree.h"
#include "comm/wire.h"

namespace athanor {
namespace {

constexpr int64_t kBlockBytes = 1 << 18;  // per rank's contribution and block: bounds the memory of reductions
// Maximum bytes that go through the tree at once: per rank, and received by rank 0 if all ranks send.
constexpr size_t kMostOfRank = 1 << 16, kMostInTree = 1 << 26;

class Direct final : public Communicator {
 public:
  enum class Of : uint8_t { hosts, tensors };
  Direct(std::shared_ptr<Wire> wire, std::vector<int> members, int rank, uint64_t group, int fan_out, Of of)
      : of_(of),
        wire_(std::move(wire)),
        members_(std::move(members)),
        rank_(rank),
        group_(group),
        tree_{.ranks = int(members_.size()), .fan_out = fan_out} {}
  int rank() const override { return rank_; }
  int size() const override { return int(members_.size()); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    struct Place {
      int32_t color, key;
    };
    std::vector<Place> all(members_.size());
    Place mine{color, key};
    all_gather({all.data(), DType::i32, {int64_t(all.size()) * 2}}, {&mine, DType::i32, {2}}, Stream::compute);
    std::vector<int> group;
    for (int r = 0; r < size(); ++r)
      if (all[size_t(r)].color == color) group.push_back(r);
    std::stable_sort(group.begin(), group.end(), [&](int x, int y) { return all[size_t(x)].key < all[size_t(y)].key; });
    const int rank = int(std::find(group.begin(), group.end(), rank_) - group.begin());
    for (int& r : group) r = members_[size_t(r)];
    return std::make_unique<Direct>(wire_, std::move(group), rank, stream_of(cat(group_, " ", call_, " ", color)),
                                    tree_.fan_out, Of::tensors);
  }

  void all_reduce(Tensor x, Reduce how, Stream) override {
    if (const int64_t slice = slice_in_tree(x)) {
      for (int64_t lo = 0; lo < x.numel(); lo += slice)
        reduce_in_tree(x.view({x.numel()}).slice(lo, std::min(x.numel(), lo + slice)), how);
      return;
    }
    const int64_t block = std::max<int64_t>(1, kBlockBytes / int64_t(size_of(x.dtype))) * size();
    for (int64_t lo = 0; lo < x.numel(); lo += block)
      reduce_block(x.view({x.numel()}).slice(lo, std::min(x.numel(), lo + block)), how);
  }

  void reduce_scatter(Tensor shard, Tensor full, Reduce how, Stream) override {
    CHECK(full.numel() == shard.numel() * size(), "reduce_scatter: ", full.shape, " into ", size(), " shards of ",
          shard.shape);
    const int64_t n = shard.numel(), block = std::max<int64_t>(1, kBlockBytes / int64_t(size_of(shard.dtype)));
    for (int64_t lo = 0; lo < n; lo += block) {
      const int64_t hi = std::min(n, lo + block);
      exchange_and_reduce(Collective::reduce_scatter, how, shard.dtype, hi - lo, shard.at(lo), [&](int r) {
        return Part{full.at(r * n + lo), hi - lo};
      });
    }
  }

  void all_gather(Tensor full, Tensor shard, Stream) override {
    CHECK(full.numel() == shard.numel() * size(), "all_gather: ", size(), " shards of ", shard.shape, " into ",
          full.shape);
    void* own = full.at(rank_ * shard.numel());
    if (own != shard.data && shard.bytes()) std::memmove(own, shard.data, shard.bytes());
    if (const int64_t slice = slice_in_tree(shard)) return gather_in_tree(full, shard.numel(), slice);
    std::vector<Part> parts;
    for (int r = 0; r < size(); ++r) parts.push_back({full.at(r * shard.numel()), shard.numel()});
    gather(Collective::all_gather, parts, shard.dtype);
  }

  void broadcast(Tensor x, int root, Stream) override {
    CHECK(root >= 0 && root < size(), "broadcast: root ", root, " of ", size());
    descend(header(Collective::broadcast, x.dtype, 0), {x.data, x.bytes()}, root);
  }

  void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Stream) override {
    CHECK(int(out.size()) == size() && int(in.size()) == size(), "all_to_all: ", out.size(), " and ", in.size(),
          " tensors for ", size(), " ranks");
    Header h = header(Collective::all_to_all, DType::u8, 0);
    std::vector<Transfer> sends, receives;
    for (int r = 0; r < size(); ++r) {
      const Tensor &to = out[size_t(r)], &from = in[size_t(r)];
      if (r == rank_) {
        CHECK(to.data == nullptr || to.bytes() == from.bytes(), "all_to_all: ", to.shape, " for itself as ",
              from.shape);
        if (to && to.data != from.data) std::memmove(from.data, to.data, to.bytes());
        continue;
      }
      const auto add = [&](std::vector<Transfer>& all, const Tensor& t) {
        h.dtype = uint32_t(t.dtype), h.bytes = t.bytes();
        if (t) all.push_back(transfer(r, t.data, h));
      };
      add(sends, to), add(receives, from);
    }
    wire_->run(sends, receives);
  }

  // Messages between two ranks are ordered among themselves, independently of the group's collectives.
  void send(Tensor x, int dst, Stream) override {
    std::vector<Transfer> sends = {message(dst, x)}, none;
    wire_->run(sends, none);
  }
  void start_send(Tensor x, int dst, Stream) override { wire_->start(message(dst, x)); }
  void finish_sends(int dst, int64_t under_way) override { wire_->finish(members_[size_t(peer(dst))], under_way); }
  void recv(Tensor x, int src, Stream) override {
    std::vector<Transfer> receives = {message(src, x)}, none;
    wire_->run(none, receives);
  }
  void exchange(Tensor out, Tensor in, int with, Stream) override {
    std::vector<Transfer> sends = {message(with, out)}, receives = {message(with, in)};
    wire_->run(sends, receives);
  }
  void barrier() override {
    if (tree_.is_flat()) return gather(Collective::barrier, std::vector<Part>(members_.size()), DType::u8);
    const Header h = header(Collective::barrier, DType::u8, 0);
    climb(h, {}, nullptr);
    descend(h, {}, 0);
  }

 private:
  struct Part {
    void* data = nullptr;
    int64_t numel = 0;
  };
  int peer(int rank) const {
    CHECK(rank >= 0 && rank < size() && rank != rank_, "rank ", rank_, " of ", size(), " has no peer ", rank);
    return rank;
  }
  Header header(Collective op, DType dtype, size_t bytes) {
    return {group_, call_++, bytes, uint32_t(op), uint32_t(dtype)};
  }
  Transfer transfer(int rank, void* data, const Header& h) const {
    return {members_[size_t(rank)], static_cast<std::byte*>(data), h};
  }

  Transfer message(int with, const Tensor& x) const {
    return transfer(peer(with), x.data, {group_, 0, x.bytes(), uint32_t(Collective::message), uint32_t(x.dtype)});
  }

  // Number of elements that go through the tree at once if every rank contributes `x`; 0: x is exchanged directly. All
  // ranks get the same number.
  int64_t slice_in_tree(const Tensor& x) const {
    const size_t most = std::min(kMostOfRank, kMostInTree / members_.size());
    if (tree_.is_flat() || (of_ == Of::tensors && x.bytes() > most)) return 0;
    return std::max<int64_t>(1, int64_t(most / size_of(x.dtype)));
  }

  struct Bytes {
    void* data = nullptr;
    size_t size = 0;
  };
  // Gathers each rank's `own` on rank 0, into `all`, in rank order.
  void climb(Header h, Bytes own, void* all) {
    const std::vector<int> mine = tree_.subtree(rank_);
    std::vector<std::byte> parts(mine.size() * own.size);
    if (own.size) std::memcpy(parts.data(), own.data, own.size);
    std::vector<Transfer> sends, receives;
    size_t at = own.size;
    for (int child = tree_.first_child(rank_); child < tree_.end_child(rank_); ++child) {
      h.bytes = tree_.subtree(child).size() * own.size;
      receives.push_back(transfer(child, parts.data() + at, h));
      at += h.bytes;
    }
    wire_->run(sends, receives);
    receives.clear();
    h.bytes = parts.size();
    if (rank_ > 0) sends.push_back(transfer(tree_.parent(rank_), parts.data(), h));
    wire_->run(sends, receives);
    for (size_t i = 0; rank_ == 0 && own.size && i < mine.size(); ++i)
      std::memcpy(static_cast<std::byte*>(all) + size_t(mine[i]) * own.size, parts.data() + i * own.size, own.size);
  }

  // Broadcasts `what` of `root` to all ranks.
  void descend(Header h, Bytes what, int root) {
    h.bytes = what.size;
    const int place = (rank_ - root + size()) % size();  // position in the tree
    const auto to = [&](int other) { return transfer((other + root) % size(), what.data, h); };
    std::vector<Transfer> sends, receives;
    if (place > 0) receives.push_back(to(tree_.parent(place)));
    wire_->run(sends, receives);
    receives.clear();
    for (int child = tree_.first_child(place); child < tree_.end_child(place); ++child) sends.push_back(to(child));
    wire_->run(sends, receives);
  }

  void reduce_in_tree(Tensor x, Reduce how) {
    const Header h = header(Collective::all_reduce, x.dtype, 0);
    const size_t bytes = x.bytes();
    arrived_.resize(rank_ == 0 ? bytes * members_.size() : 0);
    climb(h, {x.data, bytes}, arrived_.data());
    std::vector<const void*> contributions;
    for (int r = 0; rank_ == 0 && r < size(); ++r) contributions.push_back(arrived_.data() + bytes * size_t(r));
    if (rank_ == 0) reduce_in_order(x.data, contributions, x.numel(), x.dtype, how);
    descend(h, {x.data, bytes}, 0);
  }

  // Gathers every rank's n elements into `full`, where this rank's already are.
  void gather_in_tree(const Tensor& full, int64_t n, int64_t slice) {
    std::vector<std::byte> of_all;
    for (int64_t lo = 0; lo < n; lo += slice) {
      const int64_t count = std::min(slice, n - lo);
      const size_t bytes = size_t(count) * size_of(full.dtype);
      if (count < n) of_all.resize(bytes * members_.size());
      void* all = count < n ? of_all.data() : full.data;
      const Header h = header(Collective::all_gather, full.dtype, 0);
      climb(h, {full.at(rank_ * n + lo), bytes}, all);
      descend(h, {all, bytes * members_.size()}, 0);
      for (int r = 0; count < n && r < size(); ++r)
        std::memcpy(full.at(r * n + lo), of_all.data() + bytes * size_t(r), bytes);
    }
  }

  // Sends this rank's part to every other rank and receives the parts of the others.
  void gather(Collective op, const std::vector<Part>& parts, DType dtype) {
    Header h = header(op, dtype, 0);
    std::vector<Transfer> sends, receives;
    const auto add = [&](std::vector<Transfer>& to, int rank, const Part& part) {
      h.bytes = size_t(part.numel) * size_of(dtype);
      to.push_back(transfer(rank, part.data, h));
    };
    for (int r = 0; r < size(); ++r)
      if (r != rank_) add(sends, r, parts[size_t(rank_)]), add(receives, r, parts[size_t(r)]);
    wire_->run(sends, receives);
  }

  // Rank r reduces the part that part_of(r) names; this rank's result of n elements goes to `out`.
  template <class PartOf>
  void exchange_and_reduce(Collective op, Reduce how, DType dtype, int64_t n, void* out, PartOf part_of) {
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
    wire_->run(sends, receives);
    reduce_in_order(out, contributions, n, dtype, how);
  }

  void reduce_block(Tensor x, Reduce how) {
    const auto begin = [&](int r) { return x.numel() * r / size(); };
    std::vector<Part> parts;
    for (int r = 0; r < size(); ++r) parts.push_back({x.at(begin(r)), begin(r + 1) - begin(r)});
    const Part own = parts[size_t(rank_)];
    exchange_and_reduce(Collective::all_reduce, how, x.dtype, own.numel, own.data,
                        [&](int r) { return parts[size_t(r)]; });
    gather(Collective::all_reduce, parts, x.dtype);
  }

  const Of of_;
  std::shared_ptr<Wire> wire_;
  std::vector<int> members_;  // world ranks of the group
  int rank_;
  uint64_t group_, call_ = 0;
  RankTree tree_;
  std::vector<std::byte> arrived_;
};

}  // namespace

const char* name_of(Collective c) {
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "send",
                                    "broadcast",  "barrier",    "all_to_all"};
  return size_t(c) < std::size(kNames) ? kNames[size_t(c)] : "something";
}

void require_same_call(const Transfer& t, int rank) {
  const Header &got = t.arrived, &want = t.header;
  if (got == want) return;
  throw Error(cat("rank ", t.peer, " calls ", name_of(Collective(got.op)), " of ", got.bytes, " bytes (call ", got.call,
                  ") where rank ", rank, " calls ", name_of(Collective(want.op)), " of ", want.bytes, " bytes (call ",
                  want.call, "): the ranks have different configurations or data"));
}

std::unique_ptr<Communicator> make_direct(std::shared_ptr<Wire> wire, int rank, RankTree tree) {
  std::vector<int> members;
  for (int r = 0; r < tree.ranks; ++r) members.push_back(r);
  return std::make_unique<Direct>(std::move(wire), std::move(members), rank, 0, tree.fan_out, Direct::Of::hosts);
}

}  // namespace athanor
