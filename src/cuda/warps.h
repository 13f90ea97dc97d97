// Kernels with one warp per row: blocks of kWarps warps.
#pragma once
#include "cuda/kernels.h"

namespace athanor::cuda {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

__device__ __forceinline__ int lane_number() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_number() {
  return static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
}
inline LaunchConfig warps(int64_t count, cudaStream_t stream) {
  return {dim3(grid_size(div_ceil<int64_t>(count, kWarps))), dim3(kThreads), 0, stream};
}

}  // namespace athanor::cuda
