// The communicator of a group of one.
#include "comm/communicator.h"

namespace athanor {
namespace {

class Single final : public Communicator {
 public:
  explicit Single(Device& device) : device_(device) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Communicator> split(int, int) override { return std::make_unique<Single>(device_); }
  void all_reduce(Tensor, Reduce, Stream) override {}
  void all_gather(Tensor full, Tensor shard, Stream stream) override { move(full, shard, stream); }
  void reduce_scatter(Tensor shard, Tensor full, Reduce, Stream stream) override { move(shard, full, stream); }
  void send(Tensor, int, Stream) override { CHECK(false, "a group of one has no peer to send to"); }
  void recv(Tensor, int, Stream) override { CHECK(false, "a group of one has no peer to receive from"); }
  void exchange(Tensor, Tensor, int, Stream) override { CHECK(false, "a group of one has no peer to exchange with"); }
  void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Stream stream) override {
    if (out[0]) move(in[0], out[0], stream);
  }
  void broadcast(Tensor, int root, Stream) override { CHECK(root == 0, "root ", root, " of a group of one"); }
  void barrier() override {}

 private:
  void move(Tensor to, Tensor from, Stream stream) {
    CHECK(to.bytes() == from.bytes(), "a group of one moves ", from.bytes(), " bytes into ", to.bytes());
    if (to.data != from.data) device_.copy(to.data, from.data, to.bytes(), stream);
  }
  Device& device_;
};

}  // namespace

std::unique_ptr<Communicator> make_single(Device& device) { return std::make_unique<Single>(device); }

}  // namespace athanor
