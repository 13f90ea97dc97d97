// Searches for the scale of a block of integers with the smallest weighted squared error. All arithmetic is float, in
// the order of ggml's quantizer, since its bytes are reproduced: sums run from the first element to the last.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace athanor {

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
