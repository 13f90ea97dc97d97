// Wishes of the ranks: what the host of any rank may ask all ranks for in a step, such as to stop after it. They are
// added up over the ranks together with the step's other scalars, so that every rank reads the same with the step's
// result and no message between hosts is needed.
#pragma once
#include <cstdint>

#include "base/error.h"
#include "ops/optimizer.h"

namespace athanor {

using WishBits = uint32_t;  // bit w: wish w, below kWishes

// A double counts two wishes, in 26 bits each: exact sums for less than 2^26 ranks. The largest of such numbers, in
// place of their sum, would lose wishes.
constexpr int kWishes = 2 * kWishSums;
constexpr int64_t kWishRadix = int64_t{1} << 26;

// This rank's wishes, as StepState::wishes of a step that is about to close.
inline void write_wishes(WishBits wishes, double* sums) {
  CHECK(wishes >> kWishes == 0, "wishes ", wishes, ", expected below ", kWishes, " bits");
  for (int i = 0; i < kWishSums; ++i)
    sums[i] = double((wishes >> (2 * i) & 1) + (wishes >> (2 * i + 1) & 1) * uint64_t(kWishRadix));
}

// The wishes of any rank, from the sums over all.
inline WishBits read_wishes(const double* sums) {
  WishBits any = 0;
  for (int i = 0; i < kWishSums; ++i) {
    const auto sum = int64_t(sums[i]);
    if (sum % kWishRadix != 0) any |= WishBits{1} << (2 * i);
    if (sum / kWishRadix != 0) any |= WishBits{1} << (2 * i + 1);
  }
  return any;
}

}  // namespace athanor
