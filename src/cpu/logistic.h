// Vectorized logistic function (sigmoid) for the activations of feed-forward layers.
#pragma once
#include "cpu/vec.h"

namespace athanor {

// sigmoid(x) and sigmoid(-x), each with full relative precision.
template <int L>
struct Logistic {
  simd::Vec<L> of, of_minus;
};
// They are 1 / (1 + e) and e / (1 + e) with e = e^-|x|, in an order that depends on the sign of x.
template <int L>
ATHANOR_INLINE Logistic<L> logistic(const simd::Vec<L>& x) {
  using Bits = simd::Word<L>;
  const simd::Vec<L> e = simd::exp_nonpositive(
      simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA { return (simd::Float<L>)((Bits)x.part[i] | 0x80000000u); }));
  const simd::Vec<L> t = 1.0f / (1.0f + e), et = e * t;
  const auto pick = [&](const simd::Vec<L>& a, const simd::Vec<L>& b) ATHANOR_INLINE_LAMBDA {
    return simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA { return x.part[i] < 0.0f ? a.part[i] : b.part[i]; });
  };
  return {pick(et, t), pick(t, et)};
}

}  // namespace athanor
