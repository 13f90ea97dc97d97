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
  void all_reduce(Tensor x, Reduce how, Stream stream) override { inner_->all_reduce(x, how, stream); }
  void all_gather(Tensor full, Tensor shard, Stream stream) override { inner_->all_gather(full, shard, stream); }
  void reduce_scatter(Tensor shard, Tensor full, Reduce how, Stream stream) override {
    inner_->reduce_scatter(shard, full, how, stream);
  }
  void send(Tensor x, int dst, Stream stream) override { inner_->send(x, dst, stream); }
  void start_send(Tensor x, int dst, Stream stream) override { inner_->start_send(x, dst, stream); }
  void finish_sends(int dst, int64_t under_way) override { inner_->finish_sends(dst, under_way); }
  void recv(Tensor x, int src, Stream stream) override { inner_->recv(x, src, stream); }
  void exchange(Tensor out, Tensor in, int peer, Stream stream) override { inner_->exchange(out, in, peer, stream); }
  void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Stream stream) override {
    inner_->all_to_all(out, in, stream);
  }
  void broadcast(Tensor x, int root, Stream stream) override { inner_->broadcast(x, root, stream); }
  void barrier() override { inner_->barrier(); }

 protected:
  std::unique_ptr<Communicator> inner_;
};

}  // namespace athanor
