// Amax of a kernel's output, for ops that return it with their output (NormFwd::amax and others). It is kept as float
// bits, which sort like absolute values with NaN above all, so the result does not depend on the order of reduction.
// The launcher sets the result to 0 beforehand.
#pragma once
#include "cuda/host_tools.h"
#include "cuda/reduce.h"
namespace athanor::cuda {

__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// Raises amax to an absolute value, given as float bits, rounded to T.
template <class T>
__device__ __forceinline__ void raise_to(uint32_t* amax, uint32_t bits) {
  atomicMax(amax, magnitude(to_float(from_float<T>(__uint_as_float(bits)))));
}

// Raises amax to the maximum over a warp's threads; all of them must call it.
template <class T>
__device__ __forceinline__ void raise_by_warp(uint32_t* amax, uint32_t bits) {
  bits = warp_reduce(bits, Max{});
  if (threadIdx.x % 32 == 0) raise_to<T>(amax, bits);
}

// Amax of one thread's values before they are rounded to T: rounding keeps their order, so only the amax is rounded.
// wanted: false compiles to nothing.
template <bool wanted>
struct Amax {
  uint32_t bits = 0;

  template <int E>
  __device__ __forceinline__ void add(const float (&values)[E]) {
    if constexpr (wanted) {
#pragma unroll
      for (int i = 0; i < E; ++i) bits = Max{}(bits, magnitude(values[i]));
    }
  }
  // All threads of a block must call it, once.
  template <class T>
  __device__ __forceinline__ void raise(uint32_t* amax) const {
    if constexpr (wanted) {
      SHARED(uint32_t, smem, [32]);
      const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x, warps = blockDim.x * blockDim.y / 32;
      const uint32_t of_warp = warp_reduce(bits, Max{});
      if (thread % 32 == 0) smem[thread / 32] = of_warp;
      __syncthreads();
      if (thread != 0) return;
      uint32_t all = smem[0];
      for (unsigned w = 1; w < warps; ++w) all = Max{}(all, smem[w]);
      raise_to<T>(amax, all);
    }
  }
};

// Zeroes amax (empty, or [1] f32) and returns it as bits; null if empty.
inline uint32_t* zeroed(const Tensor& amax, cudaStream_t stream) {
  if (amax) CUDA_CHECK(cudaMemsetAsync(amax.data, 0, sizeof(uint32_t), stream));
  return data<uint32_t>(amax);
}
// Calls f.operator()<wanted>().
template <class F>
void by_wanted(const uint32_t* amax, F f) {
  if (amax) {
    f.template operator()<true>();
  } else {
    f.template operator()<false>();
  }
}
}  // namespace athanor::cuda
