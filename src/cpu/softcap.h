// The soft-cap cap * tanh(x / cap) of logits; cap 0: the logits themselves.
#pragma once
#include <cmath>
#include <limits>

#include "cpu/vec.h"

namespace athanor {

template <int L>
ATHANOR_INLINE simd::Vec<L> capped(const simd::Vec<L>& x, float cap) {
  return cap > 0 ? cap * simd::tanh(x / cap).value : x;
}
inline double capped(float x, float cap) {
  return cap > 0 ? double(cap) * std::tanh(double(x) / double(cap)) : double(x);
}
// The derivative of capped().
inline double cap_slope(float x, float cap) {
  if (cap <= 0) return 1;
  const double cosine = std::cosh(double(x) / double(cap));
  return 1 / (cosine * cosine);
}
// The value that a row's exponents are relative to: its maximum, soft-capped.
inline float base_of(float max, float cap) {
  const float most = float(capped(max, cap));
  return most == -std::numeric_limits<float>::infinity() ? 0 : most;  // -inf - -inf would be NaN
}

}  // namespace athanor
