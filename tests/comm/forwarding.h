// A communicator that passes every call on to another one, for tests to override what they watch or get wrong. Sums in
// f32 are the base's: they pass through the overridden calls.
#pragma once
#include <memory>
#include <utility>

#include "comm/communicator.h"

namespace athanor {

class Forwarding : public Communicator {
 public:
  explicit Forwarding(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::unique_ptr<Communicator> split(int color, int key) override { return inner_->split(color, key); }
  void all_reduce(Tensor x, Reduce how, Lane lane) override { inner_->all_reduce(x, how, lane); }
  void all_gather(Tensor full, Tensor shard, Lane lane) override { inner_->all_gather(full, shard, lane); }
  void reduce_scatter(Tensor shard, Tensor full, Reduce how, Lane lane) override {
    inner_->reduce_scatter(shard, full, how, lane);
  }
  void send(Tensor x, int dst, Lane lane) override { inner_->send(x, dst, lane); }
  void start_send(Tensor x, int dst, Lane lane) override { inner_->start_send(x, dst, lane); }
  void finish_sends(int dst, int64_t under_way) override { inner_->finish_sends(dst, under_way); }
  void recv(Tensor x, int src, Lane lane) override { inner_->recv(x, src, lane); }
  void exchange(Tensor out, Tensor in, int peer, Lane lane) override { inner_->exchange(out, in, peer, lane); }
  void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Lane lane) override {
    inner_->all_to_all(out, in, lane);
  }
  void broadcast(Tensor x, int root, Lane lane) override { inner_->broadcast(x, root, lane); }
  void barrier() override { inner_->barrier(); }

 protected:
  std::unique_ptr<Communicator> inner_;
};

}  // namespace athanor
