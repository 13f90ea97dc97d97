// Element types of kernels and their conversions, eight 16-bit elements at a time where memory is concerned.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstring>

#include "cuda/access.h"
namespace athanor::cuda {

using bf16 = __nv_bfloat16;
using fp16 = __half;

template <class T>
__host__ __device__ __forceinline__ float to_float(T x) {
  return static_cast<float>(x);
}
template <class T>
__host__ __device__ __forceinline__ T from_float(float x) {  // to nearest, ties to even
  return static_cast<T>(x);
}

// kVector<T> elements fill 16 bytes.
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

template <class T>
__device__ __forceinline__ void load_vector(const T* p, float (&values)[kVector<T>]) {
  const uint4 raw = ld16(p);
  T elements[kVector<T>];
  memcpy(static_cast<void*>(elements), &raw, sizeof raw);
#pragma unroll
  for (int i = 0; i < kVector<T>; ++i) values[i] = to_float(elements[i]);
}
template <class T>
__device__ __forceinline__ void store_vector(T* p, const float (&values)[kVector<T>]) {
  T elements[kVector<T>];
#pragma unroll
  for (int i = 0; i < kVector<T>; ++i) elements[i] = from_float<T>(values[i]);
  uint4 raw;
  memcpy(&raw, elements, sizeof raw);
  st16(p, raw);
}
}  // namespace athanor::cuda
