// Device functions that quantize values like tensor/float8.h. A lane has 8 neighbouring elements, a warp 256.
#pragma once
#include "cuda/quantize/amax.h"
#include "cuda/vectors.h"
#include "tensor/float8.h"
namespace athanor::cuda {

constexpr int kLanes = 32;
constexpr int kElements = 8;  // elements per lane
constexpr uint32_t kInfinity = 0x7f800000u, kNan = 0x7fc00000u;

// The maximum over the lanes that hold columns of one block, returned to all of them. width: columns of a block, at
// least kElements, or 0: all.
__device__ __forceinline__ uint32_t over_lanes(uint32_t value, int width) {
  const int lanes = width == 0 ? kLanes : width / kElements;
  for (int apart = 1; apart < lanes; apart *= 2) {
    const uint32_t other = __shfl_xor_sync(~0u, value, apart);
    value = other > value ? other : value;
  }
  return value;
}

// Parameters of scaled(), the equivalent of code_scale() of tensor/float8.h.
struct Rule {
  float most_code;
  bool e5m2, power_of_two, e8m0;
  const float* given;  // multiplier to use if above 0; may be null
  float* amax;         // raised to the amax of x; may be null
};
struct Scaled {
  float factor, scale;
};
__device__ __forceinline__ Scaled scaled(uint32_t most, const Rule& rule) {
  if (most >= kInfinity) return {0.f, __uint_as_float(kNan)};
  if (most == 0) return {1.f, 1.f};
  const float exact = __fdiv_rn(rule.most_code, __uint_as_float(most));
  float factor = exact < 0x1p126f ? exact : 0x1p126f;
  if (rule.power_of_two) factor = __uint_as_float(__float_as_uint(factor) & kInfinity);
  return {factor, __fdiv_rn(1.f, factor)};
}
// Quantizes two values to FP8; NaN becomes 0x7f, whatever its sign.
__device__ __forceinline__ uint32_t code_pair(float a, float b, bool e5m2) {
  const uint32_t quantized = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
  const uint32_t low = magnitude(a) > kInfinity ? 0x7fu : quantized & 0xffu,
                 high = magnitude(b) > kInfinity ? 0x7fu : quantized >> 8;
  return low | high << 8;
}
__device__ __forceinline__ uint2 code_words(const float (&v)[kElements], bool e5m2) {
  uint32_t words[2];
#pragma unroll
  for (int k = 0; k < 2; ++k)
    words[k] = code_pair(v[4 * k], v[4 * k + 1], e5m2) | code_pair(v[4 * k + 2], v[4 * k + 3], e5m2) << 16;
  return {words[0], words[1]};
}
__device__ __forceinline__ void store_scale(void* scales, int64_t at, float scale, bool e8m0) {
  if (e8m0) {
    const uint32_t exponent = __float_as_uint(scale) >> 23;
    static_cast<uint8_t*>(scales)[at] = static_cast<uint8_t>(exponent < 255 ? exponent : 255);
  } else {
    static_cast<float*>(scales)[at] = scale;
  }
}
// Same as global_scale() of tensor/float8.h; a non-finite amax gives factor 0 and scale NaN.
__device__ __forceinline__ Scaled whole_scale(uint32_t most) {
  constexpr float kMaxValue = 6 * 448;  // maximum of e2m1 times maximum of e4m3
  if (most >= kInfinity) return {0.f, __uint_as_float(kNan)};
  if (most == 0) return {1.f, 1.f};
  const float exact = __fdiv_rn(kMaxValue, __uint_as_float(most)), factor = exact < 0x1p110f ? exact : 0x1p110f;
  return {factor, __fdiv_rn(1.f, factor)};
}
__device__ __forceinline__ float e4m3_value(uint8_t bits) {
  __nv_fp8_e4m3 code;
  code.__x = bits;
  return to_float(code);
}
// bits: an e2m1 value in the lowest 4 bits; higher bits are ignored.
__device__ __forceinline__ float e2m1_value(uint32_t bits) {
  const float magnitude = __fmul_rn(__uint_as_float((bits & 0x7u) << 22), 0x1p126f);
  return bits & 0x8u ? -magnitude : magnitude;
}
// Rounds as round_to_8_bits<1, 0, 6>() and from_float<f4_e2m1>() of tensor/float8.h do.
__device__ __forceinline__ uint8_t e2m1_code(float x) {
  // As floats, kMost is 6 and kAlign is 2^22.
  constexpr uint32_t kMost = 0x40c00000u, kOne = 127u << 23, kRebias = 126u << 23, kAlign = 149u << 23;
  const uint32_t sign = (__float_as_uint(x) >> 28) & 0x8u, m = magnitude(x), a = m < kMost ? m : kMost;
  if (m > kInfinity) return 0x7;
  const uint32_t normal = (a - kRebias + ((1u << 21) - 1) + ((a >> 22) & 1u)) >> 22;
  const uint32_t small = __float_as_uint(__fadd_rn(__uint_as_float(a), __uint_as_float(kAlign))) - kAlign;
  return static_cast<uint8_t>(sign | (a < kOne ? small : normal));
}

// Values whose magnitude exceeds the scale times this number saturate.
inline double saturates(DType quantized) {
  if (quantized == DType::f4_e2m1) return f4_e2m1::kSaturates;
  return quantized == DType::f8_e5m2 ? f8_e5m2::kSaturates : f8_e4m3::kSaturates;
}
}  // namespace athanor::cuda
