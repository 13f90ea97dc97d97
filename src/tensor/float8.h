// FP8 and FP4 on the host: storage types with exact conversion, round to nearest even. E4M3, E5M2 and E2M1 saturate:
// values above the maximum, infinity included, become the maximum. NaN stays NaN, except in E2M1, which has none: it
// becomes the maximum. E8M0 is a power of two, for scales. [Rouhani et al. 2023, OCP Microscaling Formats 1.0, sec. 5.3
// and 5.4.1; Micikevicius et al. 2022, "FP8 formats"]
#pragma once
#include <cmath>

#include "tensor/half.h"

namespace athanor {

struct f8_e4m3 {  // no infinity; 0x7f and 0xff are NaN
  uint8_t bits;
  static constexpr float kMost = 448;
  static constexpr float kSaturates = 464;  // midpoint to the next value, if there were one; larger inputs saturate
};
struct f8_e5m2 {  // the upper half of an f16
  uint8_t bits;
  static constexpr float kMost = 57344;
  static constexpr float kSaturates = 61440;
};
struct f4_e2m1 {  // in the low half of a byte; 0, 0.5, 1, 1.5, 2, 3, 4, 6, and the same with the sign 0x8
  uint8_t bits;
  static constexpr float kMost = 6;
  static constexpr float kSaturates = 7;
};
struct e8m0 {  // 2^(bits - 127); 0xff is NaN
  uint8_t bits;
};

// Like f16: shift into place, then rescale by 2^120 (exact, subnormals included).
ATHANOR_INLINE float to_float(f8_e4m3 x) {
  const uint32_t magnitude = uint32_t(x.bits & 0x7fu) << 20;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p120f;
  const uint32_t nan = magnitude == 0x07f00000u ? 0x7fc00000u : 0u;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | nan | (uint32_t(x.bits & 0x80u) << 24));
}
ATHANOR_INLINE float to_float(f8_e5m2 x) { return to_float(f16{uint16_t(uint32_t(x.bits) << 8)}); }
ATHANOR_INLINE float to_float(f4_e2m1 x) {
  const float magnitude = std::bit_cast<float>(uint32_t(x.bits & 0x7u) << 22) * 0x1p126f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | (uint32_t(x.bits & 0x8u) << 28));
}
ATHANOR_INLINE float to_float(e8m0 x) {
  const uint32_t normal = uint32_t(x.bits) << 23;
  return std::bit_cast<float>(x.bits == 0 ? 0x00400000u : x.bits == 255 ? 0x7fc00000u : normal);
}

namespace detail {

// Rounds to a type with kMantissa mantissa bits, smallest normal value 2^kLeast and maximum kMost (bits of a float).
// Normal range: add the rounding bias in the integer domain. Subnormal results: adding a power of two aligns the
// mantissa so that the hardware's own rounding does the work. NaN becomes 0x7f, whatever its sign.
template <int kMantissa, int kLeast, uint32_t kMost>
ATHANOR_INLINE uint8_t round_to_8_bits(float x) {
  constexpr int kShift = 23 - kMantissa;
  constexpr uint32_t kLeastNormal = uint32_t(127 + kLeast) << 23, kRebias = uint32_t(126 + kLeast) << 23;
  constexpr uint32_t kAlign = uint32_t(127 + kLeast + kShift) << 23;
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu;
  const uint32_t a = magnitude < kMost ? magnitude : kMost;
  const uint32_t normal = (a - kRebias + ((1u << (kShift - 1)) - 1) + ((a >> kShift) & 1u)) >> kShift;
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(a) + std::bit_cast<float>(kAlign)) - kAlign;
  const uint32_t finite = sign | (a < kLeastNormal ? small : normal);
  return uint8_t(magnitude > 0x7f800000u ? 0x7fu : finite);
}

}  // namespace detail

template <>
ATHANOR_INLINE f8_e4m3 from_float<f8_e4m3>(float x) {
  return {detail::round_to_8_bits<3, -6, std::bit_cast<uint32_t>(f8_e4m3::kMost)>(x)};
}
template <>
ATHANOR_INLINE f8_e5m2 from_float<f8_e5m2>(float x) {
  return {detail::round_to_8_bits<2, -14, std::bit_cast<uint32_t>(f8_e5m2::kMost)>(x)};
}

template <>
ATHANOR_INLINE f4_e2m1 from_float<f4_e2m1>(float x) {
  const uint32_t code = detail::round_to_8_bits<1, 0, std::bit_cast<uint32_t>(f4_e2m1::kMost)>(x);
  return {uint8_t((code & 0x7u) | (code & 0x80u) >> 4)};
}

// Stochastic rounding with the upper 24 bits of `random`, so that the expected value is x; saturates as above.
ATHANOR_INLINE f4_e2m1 round_at_random(float x, uint32_t random) {
  const float magnitude = std::fabs(x);
  const bool finite = magnitude < f4_e2m1::kMost;  // false for NaN, too
  const float a = finite ? magnitude : 0.0f;
  const float gap = a < 2   ? 0.5f
                    : a < 4 ? 1.0f
                            : 2.0f,
              per_gap = a < 2   ? 2.0f
                        : a < 4 ? 1.0f
                                : 0.5f;  // gap: distance between neighboring FP4 values at a; per_gap: its inverse
  const auto below = float(int32_t(a * per_gap)), rest = a * per_gap - below;
  const float up = float(int32_t(random >> 8)) * 0x1p-24f < rest ? 1.0f : 0.0f;
  const float rounded = finite ? (below + up) * gap : magnitude;
  const uint32_t sign = std::bit_cast<uint32_t>(x) & 0x80000000u;
  return from_float<f4_e2m1>(std::bit_cast<float>(std::bit_cast<uint32_t>(rounded) | sign));
}

// Scale of a block: quantized value = round(value * factor); value is approximately (quantized value) * scale.
struct CodeScale {
  float factor, scale;
};
// Returns the scale for a block with the given amax and a type with maximum `most`: factor = most / amax, at most
// 2^126, optionally rounded down to a power of two; scale = 1 / factor. A block of zeros has factor 1. A block with Inf
// or NaN has factor 0 and scale NaN, since saturation would hide these values: GEMM results that use the block are then
// NaN.
inline CodeScale code_scale(float amax, float most, bool power_of_two) {
  if (!(amax <= 0x1.fffffep127f)) return {0, std::bit_cast<float>(0x7fc00000u)};
  if (amax == 0) return {1, 1};
  const float exact = most / amax;
  const float factor = exact < 0x1p126f ? exact : 0x1p126f;
  const float kept = power_of_two ? std::bit_cast<float>(std::bit_cast<uint32_t>(factor) & 0x7f800000u) : factor;
  return {kept, 1 / kept};
}
// Two levels of scales for E2M1: value is approximately (quantized value) * block * global, where `block` is an E4M3
// scale per block and `global` an f32 scale for the matrix. [NVIDIA 2025, Pretraining Large Language Models with NVFP4,
// app. C]
struct GlobalScale {
  float factor, scale;
};
// Returns the scale for a matrix with the given amax: factor = 6 * 448 / amax, at most 2^110; scale = 1 / factor. A
// matrix of zeros has factor 1; one with Inf or NaN has factor 0 and scale NaN.
inline GlobalScale global_scale(float amax) {
  if (!(amax <= 0x1.fffffep127f)) return {0, std::bit_cast<float>(0x7fc00000u)};
  if (amax == 0) return {1, 1};
  const float exact = f4_e2m1::kMost * f8_e4m3::kMost / amax;
  const float factor = exact < 0x1p110f ? exact : 0x1p110f;
  return {factor, 1 / factor};
}
struct BlockScale {
  float factor;  // quantized value = round(value * factor)
  f8_e4m3 scale;
};
// Returns the scale for a block with the given amax. If the scale rounds to 0, factor is 0, so that the block is
// quantized to zeros.
inline BlockScale block_scale(float amax, const GlobalScale& global) {
  if (global.factor == 0) return {0, {0}};
  const auto scale = from_float<f8_e4m3>(amax / f4_e2m1::kMost * global.factor);
  return {scale.bits == 0 ? 0 : global.factor / to_float(scale), scale};
}

// scale: a power of two or NaN.
inline e8m0 as_e8m0(float scale) {
  const uint32_t exponent = std::bit_cast<uint32_t>(scale) >> 23;
  return {uint8_t(exponent < 255 ? exponent : 255)};
}

}  // namespace athanor
