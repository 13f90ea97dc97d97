// Element types of kernels, their conversions, and access to them in 32-bit words.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstring>
#include <type_traits>

#include "cuda/access.h"
namespace athanor::cuda {

using bf16 = __nv_bfloat16;
using fp16 = __half;

template <class T>
__host__ __device__ __forceinline__ float to_float(T x) {
  return static_cast<float>(x);
}
template <class T>
__host__ __device__ __forceinline__ T from_float(float x) {  // round to nearest even
  return static_cast<T>(x);
}

// kVector<T> elements fill 16 bytes.
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

// Elements of the 32-bit words by which memory is accessed: one float or two 16-bit values, the first in the low half.
// Words are used because the compiler splits accesses to arrays of 16-bit elements.
template <class T>
__device__ __forceinline__ float element(const uint32_t* words, int i) {
  if constexpr (std::is_same_v<T, float>) {
    return __uint_as_float(words[i]);
  } else if constexpr (std::is_same_v<T, bf16>) {
    return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
  } else {
    const auto bits = static_cast<uint16_t>(words[i / 2] >> i % 2 * 16);
    T x;
    memcpy(static_cast<void*>(&x), &bits, sizeof x);
    return to_float(x);
  }
}
template <class T>
__device__ __forceinline__ uint32_t word_of(float first, float second) {
  static_assert(sizeof(T) == 2);
  uint32_t word;
  if constexpr (std::is_same_v<T, bf16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    memcpy(&word, &pair, sizeof word);
  } else {
    const __half2 pair = __floats2half2_rn(first, second);
    memcpy(&word, &pair, sizeof word);
  }
  return word;
}

template <class T>
__device__ __forceinline__ void store_vector(T* p, const float (&values)[kVector<T>]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(values[i]);
    } else {
      words[i] = word_of<T>(values[2 * i], values[2 * i + 1]);
    }
  }
  st16(p, {words[0], words[1], words[2], words[3]});
}
}  // namespace athanor::cuda
