// Moments in FP8: codes of E4M3 (first moments) and E5M2 (second moments) for the shares of the largest absolute value
// of a block, which is the type's largest number. They are rounded up or down with probability in proportion to the
// distance: to nearest, a moment whose relative change in a step is less than half a gap would stand still.
// [Micikevicius et al. 2022, "FP8 formats"]
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"
#include "tensor/float8.h"

namespace athanor {

template <class Code>
struct Fp8Format;
template <>
struct Fp8Format<f8_e4m3> {
  static constexpr int kMantissa = 3, kLeast = -6;  // bits; exponent of the smallest normal number
  static constexpr float kMost = 448;
};
template <>
struct Fp8Format<f8_e5m2> {
  static constexpr int kMantissa = 2, kLeast = -14;
  static constexpr float kMost = 57344;
};

struct Fp8Shares {
  float value[256] = {};  // by code; of codes beyond the largest, which are never written, above 1
};

namespace fp8_moments {

template <class Code>
constexpr Fp8Shares make() {
  using Format = Fp8Format<Code>;
  constexpr int kSteps = 1 << Format::kMantissa;
  double gap = 1;
  for (int i = 0; i < Format::kMantissa - Format::kLeast; ++i) gap /= 2;
  Fp8Shares shares;
  for (int exponent = 0; exponent < 128 / kSteps; ++exponent) {
    for (int step = 0; step < kSteps; ++step) {
      const int code = exponent * kSteps + step;
      shares.value[code] = float((exponent == 0 ? step : step + kSteps) * gap / double(Format::kMost));
      shares.value[128 + code] = -shares.value[code];
    }
    if (exponent > 0) gap *= 2;
  }
  return shares;
}

}  // namespace fp8_moments

inline constexpr Fp8Shares kE4m3Shares = fp8_moments::make<f8_e4m3>(), kE5m2Shares = fp8_moments::make<f8_e5m2>();

// share: in [-1, 1]; random16: uniform in [0, 2^16).
template <class Code>
ATHANOR_HOST_DEVICE ATHANOR_INLINE uint8_t round_share(float share, uint32_t random16) {
  using Format = Fp8Format<Code>;
  constexpr int kShift = 23 - Format::kMantissa;
  constexpr uint32_t kRebias = uint32_t(126 + Format::kLeast) << 23;
  constexpr auto kLeastNormal = float(1.0 / double(1 << -Format::kLeast));
  constexpr auto kFixed = float(65536.0 * double(int64_t{1} << (Format::kMantissa - Format::kLeast)));
  uint32_t bits, of_share;
  memcpy(&of_share, &share, sizeof bits);
  const float a = std::fabs(share) * Format::kMost;
  memcpy(&bits, &a, sizeof bits);
  const uint32_t normal = (bits - kRebias + (random16 << (kShift - 16))) >> kShift;
  const uint32_t small = (uint32_t((a < kLeastNormal ? a : kLeastNormal) * kFixed) + random16) >> 16;
  return uint8_t((a < kLeastNormal ? small : normal) | (of_share >> 24 & 0x80u));
}

// Codes of a moment in a block whose scale this is, by the upper and the lower half of 32 random bits. A second moment
// above 0 never becomes 0: by its root the next step is divided.
ATHANOR_HOST_DEVICE ATHANOR_INLINE uint8_t fp8_of_m(float m, float scale, uint32_t random) {
  return round_share<f8_e4m3>(scale > 0 ? m / scale : 0.f, random >> 16);
}
ATHANOR_HOST_DEVICE ATHANOR_INLINE uint8_t fp8_of_v(float v, float scale, uint32_t random) {
  const uint8_t code = round_share<f8_e5m2>(scale > 0 ? v / scale : 0.f, random & 0xffffu);
  return code == 0 && v > 0 ? uint8_t(1) : code;
}

}  // namespace athanor
