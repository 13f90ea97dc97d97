#include "cuda/nccl/communicator.h"

#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "cuda/nccl/guard.h"
#include "cuda/nccl/sum_pieces.h"

namespace athanor::cuda {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      return ncclInt32;
    case DType::u8:
    case DType::f8_e4m3:  // only moved, never reduced
    case DType::f8_e5m2:
    case DType::f8_e8m0:
    case DType::f4_e2m1:
      return ncclUint8;
    case DType::i64:
      return ncclInt64;
    case DType::f64:
      return ncclFloat64;
    case DType::i16:
      return ncclFloat16;  // NCCL has no 16-bit integers; moves need only the size
  }
  return ncclNumTypes;
}

ncclRedOp_t nccl_operator(Reduce how, DType dtype) {
  CHECK(dtype != DType::i16 && dtype < DType::f8_e4m3, "NCCL adds no ", dtype);
  const bool integer = dtype == DType::i32 || dtype == DType::u8 || dtype == DType::i64;
  CHECK(how != Reduce::avg || !integer, "integers have no exact average");
  return how == Reduce::sum ? ncclSum : how == Reduce::avg ? ncclAvg : ncclMax;
}

// An open communicator; groups of the same ranks in the same order share one.
class Handle {
 public:
  Handle(std::shared_ptr<NcclGuard> guard, Communicator& control)
      : guard_(std::move(guard)), comm_(guard_->open(control)) {}
  ~Handle() { guard_->close(comm_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  const std::shared_ptr<NcclGuard>& guard() const { return guard_; }
  ncclComm_t comm() const { return comm_; }

 private:
  std::shared_ptr<NcclGuard> guard_;
  ncclComm_t comm_;
};

class Nccl final : public Communicator {
 public:
  Nccl(std::shared_ptr<Handle> handle, std::unique_ptr<Communicator> control)
      : handle_(std::move(handle)), control_(std::move(control)) {}
  int rank() const override { return control_->rank(); }
  int size() const override { return control_->size(); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    auto group = control_->split(color, key);
    int32_t differs = group->size() != size() || group->rank() != rank();  // becomes true if it differs on any rank
    control_->all_reduce({&differs, DType::i32, {1}}, Reduce::max, Stream::compute);
    if (group->size() == 1) return make_single(handle_->guard()->device());
    auto handle = differs ? std::make_shared<Handle>(handle_->guard(), *group) : handle_;
    return std::make_unique<Nccl>(std::move(handle), std::move(group));
  }

  void all_reduce(Tensor x, Reduce how, Stream stream) override {
    const ncclRedOp_t op = nccl_operator(how, x.dtype);
    run("all_reduce", x, stream, [&](ncclComm_t comm, cudaStream_t on) {
      return nccl().ncclAllReduce(x.data, x.data, count(x), nccl_type(x.dtype), op, comm, on);
    });
  }

  void all_gather(Tensor full, Tensor shard, Stream stream) override {
    CHECK(full.numel() == shard.numel() * size() && full.dtype == shard.dtype, "all_gather: ", size(), " shards of ",
          shard.shape, " ", shard.dtype, " into ", full.shape, " ", full.dtype);
    run("all_gather", shard, stream, [&](ncclComm_t comm, cudaStream_t on) {
      return nccl().ncclAllGather(shard.data, full.data, count(shard), nccl_type(shard.dtype), comm, on);
    });
  }

  void reduce_scatter(Tensor shard, Tensor full, Reduce how, Stream stream) override {
    CHECK(full.numel() == shard.numel() * size() && full.dtype == shard.dtype, "reduce_scatter: ", full.shape, " ",
          full.dtype, " into ", size(), " shards of ", shard.shape, " ", shard.dtype);
    const ncclRedOp_t op = nccl_operator(how, shard.dtype);
    run("reduce_scatter", shard, stream, [&](ncclComm_t comm, cudaStream_t on) {
      return nccl().ncclReduceScatter(full.data, shard.data, count(shard), nccl_type(shard.dtype), op, comm, on);
    });
  }

  // NCCL rounds sums of bf16 at every hop. Instead, ranks send each other pieces, and each rank adds up its own piece.
  int64_t sum_workspace(DType dtype, int64_t n) const override { return bf16_sum_workspace(dtype, n, size()); }

  void sum(Tensor x, Tensor workspace, Stream stream) override {
    if (sum_workspace(x.dtype, x.numel()) == 0) return all_reduce(x, Reduce::sum, stream);
    const int64_t n = x.numel(), piece = piece_of_sum(n, size());
    std::vector<Tensor> pieces;  // with few elements, the last ranks have no piece
    for (int r = 0; r < size(); ++r) {
      const int64_t begin = std::min(n, r * piece), end = std::min(n, begin + piece);
      pieces.push_back(begin < end ? x.slice(begin, end) : Tensor{});
    }
    const Tensor mine = pieces[size_t(rank())];
    add_pieces(mine, pieces, workspace, stream);
    all_to_all(std::vector<Tensor>(pieces.size(), mine), pieces, stream);
  }

  void sum_scatter(Tensor shard, Tensor full, Tensor workspace, Stream stream) override {
    if (sum_workspace(full.dtype, full.numel()) == 0) return reduce_scatter(shard, full, Reduce::sum, stream);
    const int64_t n = shard.numel();
    CHECK(full.numel() == n * size() && full.dtype == shard.dtype, "sum_scatter: ", full.shape, " ", full.dtype,
          " into ", size(), " shards of ", shard.shape, " ", shard.dtype);
    std::vector<Tensor> pieces;
    for (int r = 0; r < size(); ++r) pieces.push_back(full.slice(r * n, (r + 1) * n));
    add_pieces(shard, pieces, workspace, stream);
  }

  void broadcast(Tensor x, int root, Stream stream) override {
    CHECK(root >= 0 && root < size(), "broadcast: root ", root, " of ", size());
    run("broadcast", x, stream, [&](ncclComm_t comm, cudaStream_t on) {
      return nccl().ncclBroadcast(x.data, x.data, count(x), nccl_type(x.dtype), root, comm, on);
    });
  }

  void send(Tensor x, int dst, Stream stream) override {
    check_peer(dst);
    run("send", x, stream, [&](ncclComm_t comm, cudaStream_t on) {
      return nccl().ncclSend(x.data, count(x), nccl_type(x.dtype), dst, comm, on);
    });
  }

  void recv(Tensor x, int src, Stream stream) override {
    check_peer(src);
    run("recv", x, stream, [&](ncclComm_t comm, cudaStream_t on) {
      return nccl().ncclRecv(x.data, count(x), nccl_type(x.dtype), src, comm, on);
    });
  }

  void exchange(Tensor out, Tensor in, int peer, Stream stream) override {
    check_peer(peer);
    std::vector<Tensor> sent(static_cast<size_t>(size())), received(static_cast<size_t>(size()));
    sent[size_t(peer)] = out, received[size_t(peer)] = in;
    run("exchange", out, stream, [&](ncclComm_t, cudaStream_t on) { return send_and_receive(sent, received, on); });
  }

  void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Stream stream) override {
    CHECK(int(out.size()) == size() && int(in.size()) == size(), "all_to_all: ", out.size(), " and ", in.size(),
          " tensors for ", size(), " ranks");
    const auto me = size_t(rank());
    if (out[me] && out[me].data != in[me].data)
      handle_->guard()->device().copy(in[me].data, out[me].data, out[me].bytes(), stream);
    int64_t sent = 0, received = 0;
    for (size_t r = 0; r < out.size(); ++r)
      if (r != me) sent += out[r] ? int64_t(out[r].bytes()) : 0, received += in[r] ? int64_t(in[r].bytes()) : 0;
    if (sent == 0 && received == 0) return;
    handle_->guard()->run(handle_->comm(), stream,
                          cat("all_to_all of ", sent, " bytes sent and ", received, " received over ", size(), " ranks",
                              CollectiveSubject::words()),
                          [&](cudaStream_t on) { return send_and_receive(out, in, on); });
  }

  // Barrier of the hosts, after all work queued on this rank's device is done.
  void barrier() override {
    handle_->guard()->device().sync();
    control_->barrier();
  }

 private:
  // out: the sum of this rank's piece over all ranks; empty if this rank has no piece.
  void add_pieces(const Tensor& out, std::span<const Tensor> pieces, const Tensor& workspace, Stream stream) {
    const auto me = size_t(rank());
    const int64_t stride = piece_of_sum(pieces[0].numel(), 1);
    CHECK(workspace.dtype == DType::bf16 && workspace.numel() >= stride * size(), "room for ", workspace.numel(), " ",
          workspace.dtype, " of other ranks, expected ", stride * size(), " bf16");
    std::vector<Tensor> sent(pieces.begin(), pieces.end()), received(pieces.size());
    for (int r = 0; out && r < size(); ++r) received[size_t(r)] = workspace.slice(r * stride, r * stride + out.numel());
    sent[me] = received[me] = {};
    all_to_all(sent, received, stream);
    if (out)
      sum_pieces({out, pieces[me], workspace, stride, size(), rank()}, handle_->guard()->device().stream(stream));
  }
  static size_t count(const Tensor& x) { return size_t(x.numel()); }
  const NcclTable& nccl() const { return handle_->guard()->nccl(); }
  void check_peer(int peer) const {
    CHECK(peer >= 0 && peer < size() && peer != rank(), "rank ", rank(), " of ", size(), " has no peer ", peer);
  }
  // Sends to and receives from the other ranks, in one NCCL group, so that none of them waits for another.
  ncclResult_t send_and_receive(std::span<const Tensor> out, std::span<const Tensor> in, cudaStream_t on) const {
    ncclResult_t first = nccl().ncclGroupStart();
    const auto note = [&](ncclResult_t result) {
      if (first == ncclSuccess && result != ncclInProgress) first = result;
    };
    for (int r = 0; r < size(); ++r)
      if (const Tensor& t = out[size_t(r)]; t && r != rank())
        note(nccl().ncclSend(t.data, count(t), nccl_type(t.dtype), r, handle_->comm(), on));
    for (int r = 0; r < size(); ++r)
      if (const Tensor& t = in[size_t(r)]; t && r != rank())
        note(nccl().ncclRecv(t.data, count(t), nccl_type(t.dtype), r, handle_->comm(), on));
    const ncclResult_t ended = nccl().ncclGroupEnd();
    return first == ncclSuccess ? ended : first;
  }
  template <class Launch>
  void run(const char* what, const Tensor& x, Stream stream, Launch launch) {
    CHECK(x.contiguous(), what, " of a tensor with gaps");
    if (x.numel() == 0) return;
    handle_->guard()->run(
        handle_->comm(), stream,
        cat(what, " of ", x.shape, " ", x.dtype, " over ", size(), " ranks", CollectiveSubject::words()),
        [&](cudaStream_t on) { return launch(handle_->comm(), on); });
  }

  std::shared_ptr<Handle> handle_;
  std::unique_ptr<Communicator> control_;  // the same ranks, for messages in host memory
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const NcclTable& nccl, CudaDevice& device, NcclOptions options,
                                                     std::unique_ptr<Communicator> control) {
  auto guard = std::make_shared<NcclGuard>(nccl, device, std::move(options));
  auto handle = std::make_shared<Handle>(std::move(guard), *control);
  return std::make_unique<Nccl>(std::move(handle), std::move(control));
}

}  // namespace athanor::cuda

namespace athanor {

NcclTransport make_nccl(Device& device, NcclOptions options, std::unique_ptr<Communicator> control) {
  const Opened<NcclTable> nccl = open_nccl(search_places(library_specs()));
  auto& gpu = dynamic_cast<cuda::CudaDevice&>(device);
  return {cuda::make_nccl_communicator(nccl.call, gpu, std::move(options), std::move(control)),
          cat(nccl.library.version)};
}

}  // namespace athanor
