// Counter-based random numbers: value = f(seed, stream, index), the same on every device and for every sharding.
// Philox4x32-10 [Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"]. Constants are the paper's.
#pragma once
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/host_device.h"

namespace athanor {

struct PhiloxBlock {
  uint32_t word[4];
  ATHANOR_HOST_DEVICE uint32_t operator[](uint64_t i) const { return word[i]; }
  bool operator==(const PhiloxBlock&) const = default;
};

ATHANOR_HOST_DEVICE inline PhiloxBlock philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo) {
  uint32_t c0 = uint32_t(counter_lo), c1 = uint32_t(counter_lo >> 32);
  uint32_t c2 = uint32_t(counter_hi), c3 = uint32_t(counter_hi >> 32);
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
    c1 = uint32_t(p1);
    c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c3 = uint32_t(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// FNV-1a, 64 bits: maps names to streams. Must never change: initial weights depend on it.
constexpr uint64_t stream_of(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (char c : name) h = (h ^ uint8_t(c)) * 0x100000001b3ull;
  return h;
}

// Uniform 32-bit value at position `index` of a stream.
ATHANOR_HOST_DEVICE inline uint32_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
  return philox(seed, stream, index >> 2)[index & 3];
}

// Uniform in [0, 1), 24 bits.
ATHANOR_HOST_DEVICE inline float random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return float(random_bits(seed, stream, index) >> 8) * 0x1p-24f;
}

// Standard normal value at position `index` of a stream: Box-Muller on one Philox block per pair. Uses double, so that
// every libm gives the same float after rounding.
ATHANOR_HOST_DEVICE inline float random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
  const auto b = philox(seed, stream, index >> 1);
  const double u = (double(b[0]) + 0.5) * 0x1p-32, v = (double(b[1]) + 0.5) * 0x1p-32;
  const double r = std::sqrt(-2.0 * std::log(u)), a = 6.283185307179586476925 * v;
  return float((index & 1) ? r * std::sin(a) : r * std::cos(a));
}

}  // namespace athanor
