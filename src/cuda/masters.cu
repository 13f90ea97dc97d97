// Masters of f32 as weights of bf16 and the 16 bits that these lack (SplitMaster of ops/optimizer.h), and back.
#include "cuda/octets.h"
#include "cuda/optimizer.h"

namespace athanor::cuda {
namespace {

__global__ void __launch_bounds__(kTileThreads) split_master(bf16* param, int16_t* rest, float* master, Extent extent) {
  ptx::wait_for_earlier_kernels();
  on_octet(extent, blockIdx.x, [&](auto octet) {
    float w[kElements];
    octet.load(w, master);
#pragma unroll
    for (int i = 0; i < kElements; ++i) w[i] = settled(w[i]);
    octet.store(master, w);
    octet.store(param, w);
    if (rest) octet.store(rest, w);
  });
}

__global__ void __launch_bounds__(kTileThreads)
    join_master(float* master, const bf16* param, const int16_t* rest, Extent extent) {
  ptx::wait_for_earlier_kernels();
  on_octet(extent, blockIdx.x, [&](auto octet) {
    float w[kElements], lower[kElements];
    octet.load(w, param);
    octet.load(lower, rest);
#pragma unroll
    for (int i = 0; i < kElements; ++i) w[i] = joined(w[i], lower[i]);
    octet.store(master, w);
  });
}

LaunchConfig tiles(const Extent& extent, cudaStream_t stream) {
  return {dim3(grid_size(tiles_of(extent.n))), dim3(kTileThreads), 0, stream};
}

}  // namespace

void run(const SplitMaster& op, void*, cudaStream_t stream) {
  if (op.master.numel() == 0) return;
  const Extent whole = extent(op.master.numel(), data<char>(op.param), data<char>(op.rest), data<char>(op.master));
  CUDA_CHECK(launch(split_master, tiles(whole, stream), data<bf16>(op.param), data<int16_t>(op.rest),
                    data<float>(op.master), whole));
}

void run(const JoinMaster& op, void*, cudaStream_t stream) {
  if (op.master.numel() == 0) return;
  const Extent whole = extent(op.master.numel(), data<char>(op.master), data<char>(op.param), data<char>(op.rest));
  CUDA_CHECK(launch(join_master, tiles(whole, stream), data<float>(op.master), data<bf16>(op.param),
                    data<int16_t>(op.rest), whole));
}
}  // namespace athanor::cuda
