#include "comm/observed.h"

namespace athanor {
namespace {

class Observed final : public Communicator {
 public:
  Observed(std::unique_ptr<Communicator> inner, const CollectiveWatch& watch, int split)
      : inner_(std::move(inner)), watch_(watch), split_(split) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    const int number = split_ < 0 ? splits_++ : split_;  // a group split from a group keeps that group's name
    return std::make_unique<Observed>(inner_->split(color, key), watch_, number);
  }
  void all_reduce(Tensor x, Reduce how, Stream stream) override {
    const Call call(*this, "all_reduce");
    inner_->all_reduce(x, how, stream);
  }
  void all_gather(Tensor full, Tensor shard, Stream stream) override {
    const Call call(*this, "all_gather");
    inner_->all_gather(full, shard, stream);
  }
  void reduce_scatter(Tensor shard, Tensor full, Reduce how, Stream stream) override {
    const Call call(*this, "reduce_scatter");
    inner_->reduce_scatter(shard, full, how, stream);
  }
  int64_t sum_workspace(DType dtype, int64_t n) const override { return inner_->sum_workspace(dtype, n); }
  void sum(Tensor x, Tensor workspace, Stream stream) override {
    const Call call(*this, "all_reduce");
    inner_->sum(x, workspace, stream);
  }
  void sum_scatter(Tensor shard, Tensor full, Tensor workspace, Stream stream) override {
    const Call call(*this, "reduce_scatter");
    inner_->sum_scatter(shard, full, workspace, stream);
  }
  void send(Tensor x, int dst, Stream stream) override {
    const Call call(*this, "send");
    inner_->send(x, dst, stream);
  }
  void start_send(Tensor x, int dst, Stream stream) override {
    const Call call(*this, "send");
    inner_->start_send(x, dst, stream);
  }
  void finish_sends(int dst, int64_t under_way) override {
    const Call call(*this, "send");
    inner_->finish_sends(dst, under_way);
  }
  void recv(Tensor x, int src, Stream stream) override {
    const Call call(*this, "recv");
    inner_->recv(x, src, stream);
  }
  void exchange(Tensor out, Tensor in, int peer, Stream stream) override {
    const Call call(*this, "exchange");
    inner_->exchange(out, in, peer, stream);
  }
  void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Stream stream) override {
    const Call call(*this, "all_to_all");
    inner_->all_to_all(out, in, stream);
  }
  void broadcast(Tensor x, int root, Stream stream) override {
    const Call call(*this, "broadcast");
    inner_->broadcast(x, root, stream);
  }
  void barrier() override { inner_->barrier(); }

 private:
  // Reports one call. A group of one sends nothing, so it reports nothing.
  struct Call {
    Call(const Observed& o, std::string_view kind) : observer(o.size() > 1 ? o.watch_.observer : nullptr) {
      if (observer) observer->begins(kind, group_name(o.split_));
    }
    ~Call() {
      if (observer) observer->ends();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    CollectiveObserver* observer;
  };
  std::unique_ptr<Communicator> inner_;
  const CollectiveWatch& watch_;
  int split_;       // number among the groups split from the world; -1: the world
  int splits_ = 0;  // groups split off the world so far
};

}  // namespace

std::unique_ptr<Communicator> observed(std::unique_ptr<Communicator> world, const CollectiveWatch& watch) {
  return std::make_unique<Observed>(std::move(world), watch, -1);
}

}  // namespace athanor
