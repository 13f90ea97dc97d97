// The block formats behind ggml_type.h, and the encoding of their f16 scales.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tensor/half.h"

namespace athanor {

constexpr int64_t kBlock32 = 32;    // values per block of q4_0, q4_1, q5_0, q5_1, q8_0 and mxfp4
constexpr int64_t kBlock256 = 256;  // values per block of q4_K, q5_K and q6_K

// Stores a scale as f16 and returns the value that readers get: infinity if the scale exceeds f16, which the caller
// checks.
inline float put_half(float value, std::byte* out) {
  const f16 stored = from_float<f16>(value);
  std::memcpy(out, &stored, sizeof stored);
  return to_float(stored);
}
inline float get_half(const std::byte* from) {
  f16 stored;
  std::memcpy(&stored, from, sizeof stored);
  return to_float(stored);
}

// Defined in ggml_blocks32.cc; q8_0 and mxfp4 ignore the importance.
void quantize_q4_0(std::span<const float> row, std::span<const float> importance, std::byte* out);
void quantize_q4_1(std::span<const float> row, std::span<const float> importance, std::byte* out);
void quantize_q5_0(std::span<const float> row, std::span<const float> importance, std::byte* out);
void quantize_q5_1(std::span<const float> row, std::span<const float> importance, std::byte* out);
void quantize_q8_0(std::span<const float> row, std::span<const float> importance, std::byte* out);
void quantize_mxfp4(std::span<const float> row, std::span<const float> importance, std::byte* out);
void dequantize_q4_0(const std::byte* block, float* out);
void dequantize_q4_1(const std::byte* block, float* out);
void dequantize_q5_0(const std::byte* block, float* out);
void dequantize_q5_1(const std::byte* block, float* out);
void dequantize_q8_0(const std::byte* block, float* out);
void dequantize_mxfp4(const std::byte* block, float* out);

// Defined in ggml_blocks256.cc.
void quantize_q4_k(std::span<const float> row, std::span<const float> importance, std::byte* out);
void quantize_q5_k(std::span<const float> row, std::span<const float> importance, std::byte* out);
void quantize_q6_k(std::span<const float> row, std::span<const float> importance, std::byte* out);
void dequantize_q4_k(const std::byte* block, float* out);
void dequantize_q5_k(const std::byte* block, float* out);
void dequantize_q6_k(const std::byte* block, float* out);

// Searches for the scale of a block of integers with the smallest weighted squared error. All arithmetic is float, in
// the order of ggml's quantizer, since its bytes are reproduced: sums run from the first element to the last.

// Rounds half to even by the mantissa of a large float; NaN becomes 0, and only |value| < 2^22 is meaningful.
inline int nearest_int(float value) { return int(std::bit_cast<uint32_t>(value + 12582912.0f) & 0x7fffffu) - 0x400000; }

// Conversion to int as on x86 for values near the int range; NaN and infinity, which the inverse of a subnormal scale
// may cause, become 0.
inline int truncated(float value) { return std::isfinite(value) ? int(value) : 0; }

constexpr float kAllZero = 1e-15f;  // an amax below this counts as 0

// Fits x ~ scale (q - limit), q in [0, 2 limit). Tries 19 scales around -(the value with the largest absolute value) /
// limit. weights: x^2 if empty.
float search_symmetric(std::span<const float> x, std::span<const float> weights, int limit, uint8_t* q);

// Fits x ~ scale q - min, q in [0, levels], min >= 0. Tries inverse scales (levels + first + i step) / range for i in
// [0, trials), each refined by the least-squares fit of scale and minimum.
struct AffineTrials {
  float first, step;
  int trials;
};
struct AffineScale {
  float scale, min;
};
AffineScale search_affine(std::span<const float> x, std::span<const float> weights, int levels, AffineTrials trials,
                          uint8_t* q);

// Fits x ~ scale q for x >= 0, q in [0, levels]: tries 9 scales, then changes single values of q as long as that
// reduces the error.
float search_positive(std::span<const float> x, std::span<const float> weights, int levels, uint8_t* q);

}  // namespace athanor
