// Splits f32 master weights into bf16 weights and 16-bit remainders (SplitMaster of ops/optimizer.h), and joins them.
#include "cuda/kernels.h"
#include "cuda/vec8.h"

namespace athanor::cuda {
namespace {

__global__ void __launch_bounds__(kTileThreads) split_master(bf16* param, int16_t* rest, float* master, Extent extent) {
  ptx::wait_for_earlier_kernels();
  on_vec8(extent, blockIdx.x, [&](auto vec8) {
    float w[kElements];
    vec8.load(w, master);
#pragma unroll
    for (int i = 0; i < kElements; ++i) w[i] = settled(w[i]);
    vec8.store(master, w);
    vec8.store(param, w);
    if (rest) vec8.store(rest, w);
  });
}

__global__ void __launch_bounds__(kTileThreads)
    join_master(float* master, const bf16* param, const int16_t* rest, Extent extent) {
  ptx::wait_for_earlier_kernels();
  on_vec8(extent, blockIdx.x, [&](auto vec8) {
    float w[kElements], lower[kElements];
    vec8.load(w, param);
    vec8.load(lower, rest);
#pragma unroll
    for (int i = 0; i < kElements; ++i) w[i] = joined(w[i], lower[i]);
    vec8.store(master, w);
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
