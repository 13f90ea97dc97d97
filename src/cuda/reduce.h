// Sums and maxima over a warp or a block, in an order that depends only on the number of threads.
#pragma once
#include "cuda/launch.h"
namespace athanor::cuda {

struct Plus {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// Result in every lane; all lanes must call it.
template <class Combine, class T>
__device__ __forceinline__ T warp_reduce(T value, Combine combine) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(~0u, value, offset));
  return value;
}

// Result in every thread of the block, whose size is a multiple of 32. `smem` [32]: shared memory, not used elsewhere.
template <class Combine, class T>
__device__ __forceinline__ T block_reduce(T value, T* smem, Combine combine) {
  value = warp_reduce(value, combine);
  const unsigned warps = blockDim.x / 32;
  if (warps == 1) return value;
  __syncthreads();  // the results of the previous call may still be read
  if (threadIdx.x % 32 == 0) smem[threadIdx.x / 32] = value;
  __syncthreads();
  T result = smem[0];
  for (unsigned i = 1; i < warps; ++i) result = combine(result, smem[i]);
  return result;
}
__device__ __forceinline__ float block_sum(float value, float* smem) { return block_reduce(value, smem, Plus{}); }
}  // namespace athanor::cuda
