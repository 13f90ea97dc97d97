#include "train/wishes.h"

#include <algorithm>
#include <iterator>

namespace athanor {
namespace {

constexpr bool Wishes::*kFlags[] = {&Wishes::save, &Wishes::end, &Wishes::writing, &Wishes::failed};
static_assert(kStopSignals.size() + std::size(kFlags) <= kWishes);

constexpr WishBits bit_of_signal(size_t i) { return WishBits{1} << i; }
constexpr WishBits bit_of_flag(size_t i) { return WishBits{1} << (kStopSignals.size() + i); }

}  // namespace

WishBits to_bits(const Wishes& wishes) {
  WishBits bits = 0;
  for (size_t i = 0; i < kStopSignals.size(); ++i)
    if (wishes.stop_signal == kStopSignals[i]) bits |= bit_of_signal(i);
  CHECK(wishes.stop_signal == 0 || bits != 0, "signal ", wishes.stop_signal, " is none that stops a run");
  for (size_t i = 0; i < std::size(kFlags); ++i)
    if (wishes.*kFlags[i]) bits |= bit_of_flag(i);
  return bits;
}

Wishes to_wishes(WishBits bits) {
  Wishes wishes;
  for (size_t i = 0; i < kStopSignals.size(); ++i)
    if (bits & bit_of_signal(i)) wishes.stop_signal = std::max(wishes.stop_signal, kStopSignals[i]);
  for (size_t i = 0; i < std::size(kFlags); ++i) wishes.*kFlags[i] = (bits & bit_of_flag(i)) != 0;
  return wishes;
}

}  // namespace athanor
