// Shared by the CPU kernels: run-time choice of the instruction set, elementary functions that vectorize, and
// conversion of rows of any float type to and from f32. A function marked ATHANOR_CLONES is compiled three times; the
// version is chosen when the program starts. Only code that is inlined into it is compiled with it: every helper it
// calls must be ATHANOR_INLINE (or a lambda-free template).
#pragma once
#include <bit>
#include <cstdint>

#include "tensor/half.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(ATHANOR_SANITIZED)
#define ATHANOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ATHANOR_CLONES
#endif

namespace athanor {

// e^x, error below 1.5 ulp. Exactly 0 below -104 and for -inf; inf above 88.73; NaN stays NaN.
// x = n ln2 + r, |r| <= ln2/2, e^r by its Taylor series (remainder r^8/8! < 6e-9), 2^n in two factors so that
// results below the normal range round gradually.
ATHANOR_INLINE float fast_exp(float x) {
  const float low = x < -105.0f ? -105.0f : x;
  const float c = low > 89.0f ? 89.0f : low;
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const float shifted = c * 0x1.715476p0f + kRound;
  const float n = shifted - kRound;
  const float r = (c - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;  // ln2 in two parts; the first product is exact
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = (p * r) * r + r + 1.0f;
  const int32_t i = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = i >> 1;
  const float s1 = std::bit_cast<float>((half + 127) << 23), s2 = std::bit_cast<float>((i - half + 127) << 23);
  return p * s1 * s2;
}

// dst[0, n) = src as f32; T is float, bf16 or f16.
template <class T>
ATHANOR_INLINE void load_row(float* dst, const T* src, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dst[i] = to_float(src[i]);
}

// dst[0, n) += src as f32.
template <class T>
ATHANOR_INLINE void add_row(float* dst, const T* src, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dst[i] += to_float(src[i]);
}

// dst[0, n) = src rounded to T, to nearest even.
template <class T>
ATHANOR_INLINE void store_row(T* dst, const float* src, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dst[i] = from_float<T>(src[i]);
}

}  // namespace athanor
