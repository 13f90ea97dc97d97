// The 256 numbers between -1 and 1 (signed) or 0 and 1 that codes of 8 bits stand for in block-wise optimizer states:
// dense in their relative, not their absolute distance, over seven decades [Dettmers et al. 2022, "8-bit Optimizers via
// Block-wise Quantization"; bitsandbytes' create_dynamic_map]. Of decade 10^(i - 6), i = 0 ... 6, they are the
// midpoints of [0.1, 1] cut into 2^i equal parts for either sign, or into 2^(i + 1); besides, 0 and 1.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/host_device.h"

namespace athanor {

constexpr int64_t kCodeBlock = 256;  // elements that share a scale, the largest absolute value among them

struct DynamicMap {
  float value[256] = {};  // by code, rising
  float bound[255] = {};  // code i + 1 or a larger one is nearest from here on
};

namespace dynamic_map {

// The smallest f32 that is not below x.
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

// The code nearest to x in [-1, 1], of two the larger one. bound: of a map.
ATHANOR_HOST_DEVICE inline uint8_t nearest_code(const float* bound, float x) {
  int code = 0;
  // A product, since branches on x cannot be predicted.
  for (int step = 128; step > 0; step /= 2) code += int(x >= bound[code + step - 1]) * step;
  return uint8_t(code);
}

// Codes of a moment in a block whose scale this is. A second moment above 0 never becomes 0: by its root the next step
// is divided.
ATHANOR_HOST_DEVICE inline uint8_t code_of_m(const float* signed_bound, float m, float scale) {
  return nearest_code(signed_bound, scale > 0 ? m / scale : 0.f);
}
ATHANOR_HOST_DEVICE inline uint8_t code_of_v(const float* unsigned_bound, float v, float scale) {
  const uint8_t code = nearest_code(unsigned_bound, scale > 0 ? v / scale : 0.f);
  return code == 0 && v > 0 ? uint8_t(1) : code;
}

}  // namespace athanor
