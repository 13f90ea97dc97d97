// The 256 values that the 8-bit elements of block-wise quantized optimizer states index: between -1 and 1 (signed) or 0
// and 1, with roughly constant relative spacing over seven decades [Dettmers et al. 2022, "8-bit Optimizers via
// Block-wise Quantization"; bitsandbytes' create_dynamic_map]. Decade 10^(i - 6), i = 0 ... 6, contributes the
// midpoints of [0.1, 1] cut into 2^i equal intervals for each sign (signed), or 2^(i + 1) intervals (unsigned); 0 and 1
// are added.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/host_device.h"

namespace athanor {

constexpr int64_t kMomentBlock = 256;  // elements that share a scale, their amax

struct DynamicMap {
  float value[256] = {};  // value of each index, ascending
  float bound[255] = {};  // from bound[i] on, index i + 1 or above is nearest
};

namespace dynamic_map {

// Returns the smallest f32 >= x.
constexpr float rounded_up(double x) {
  const auto nearest = float(x);
  if (double(nearest) >= x) return nearest;
  const auto bits = std::bit_cast<uint32_t>(nearest);
  return std::bit_cast<float>(nearest > 0 ? bits + 1 : bits - 1);
}

constexpr DynamicMap make(bool is_signed) {
  constexpr double kDecades[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  DynamicMap map;
  const size_t zero = is_signed ? 127 : 0;
  size_t next = zero + 1;
  for (int i = 0; i < 7; ++i) {
    const int parts = 1 << (is_signed ? i : i + 1);
    for (int j = 0; j < parts; ++j, ++next) {
      map.value[next] = float(kDecades[i] * (0.1 + 0.9 * (2 * j + 1) / (2 * parts)));
      if (is_signed) map.value[2 * zero - next] = -map.value[next];
    }
  }
  map.value[255] = 1;
  for (size_t i = 0; i < 255; ++i) map.bound[i] = rounded_up((double(map.value[i]) + double(map.value[i + 1])) / 2);
  return map;
}

}  // namespace dynamic_map

inline constexpr DynamicMap kSignedMap = dynamic_map::make(true), kUnsignedMap = dynamic_map::make(false);

// Returns the index of the value nearest to x in [-1, 1]; ties go to the larger index. bound: DynamicMap::bound.
ATHANOR_HOST_DEVICE inline uint8_t nearest_code(const float* bound, float x) {
  int code = 0;
  // Multiplies instead of branching: branches on x are unpredictable.
  for (int step = 128; step > 0; step /= 2) code += int(x >= bound[code + step - 1]) * step;
  return uint8_t(code);
}

// Quantized moment of a block with this scale. A second moment above 0 is never quantized to 0, since the next step
// divides by its square root.
ATHANOR_HOST_DEVICE inline uint8_t code_of_m(const float* signed_bound, float m, float scale) {
  return nearest_code(signed_bound, scale > 0 ? m / scale : 0.f);
}
ATHANOR_HOST_DEVICE inline uint8_t code_of_v(const float* unsigned_bound, float v, float scale) {
  const uint8_t code = nearest_code(unsigned_bound, scale > 0 ? v / scale : 0.f);
  return code == 0 && v > 0 ? uint8_t(1) : code;
}

}  // namespace athanor
