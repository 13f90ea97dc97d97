// 16-bit floats on the host: storage types with exact round-to-nearest-even conversion.
// Branch-free where loops over them must vectorize. NaN stays NaN (quieted).
#pragma once
#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace athanor {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }

// IEEE half to float: shift into place, then rescale by 2^112 (exact, subnormals included); restore Inf/NaN.
inline float to_float(f16 x) {
  const uint32_t magnitude = uint32_t(x.bits & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | (uint32_t(x.bits & 0x8000u) << 16));
}

template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline bf16 from_float<bf16>(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40u;
  return {uint16_t((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}
// Float to half. Normal range: add the rounding bias in the integer domain. Subnormal results: adding 0.5f aligns the
// mantissa so that the hardware's own rounding does the work. 65520 and above round to infinity.
template <>
inline f16 from_float<f16>(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  const uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 0.5f) - 0x3f000000u;
  const uint32_t special = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t finite = a < 0x38800000u ? small : normal;
  return {uint16_t(sign | (a >= 0x477ff000u ? special : finite))};
}

// TF32: float with 10 mantissa bits, round to nearest, ties away from zero (what cvt.rna.tf32.f32 does).
inline float round_tf32(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const bool finite = (u & 0x7f800000u) != 0x7f800000u;
  return std::bit_cast<float>(finite ? (u + 0x1000u) & 0xffffe000u : u);
}

// Bit-level changes of floats, for one float (uint32_t) or a vector of floats (cpu/vec.h).

// Stochastic rounding to bf16: adds 16 uniform bits below the kept mantissa and truncates, so the probability of
// rounding up is proportional to the distance. Exact values, Inf and NaN are unchanged.
template <class Word>
ATHANOR_HOST_DEVICE ATHANOR_INLINE void round_word(Word& u, const Word& random16) {
  u = (u & 0x7f800000u) != 0x7f800000u ? (u + random16) & 0xffff0000u : u;
}
// Rounds as settled() does.
template <class Word>
ATHANOR_HOST_DEVICE ATHANOR_INLINE void settle_word(Word& u) {
  u = (u & 0x1ffffu) == 0x8000u ? u - 1u : u;
}

// Rounds with the upper 16 of 32 uniform bits.
inline bf16 round_stochastic(float x, uint32_t random) {
  auto u = std::bit_cast<uint32_t>(x);
  round_word(u, random >> 16);
  return from_float<bf16>(std::bit_cast<float>(u));
}

// Splits a float into its rounding to bf16 and the remainder, which is the signed difference of the two bit patterns;
// joined() restores the float exactly. One float in 2^17, a tie between two bf16 values that rounds down, has the
// remainder 2^15, which int16 cannot hold. settled() replaces such a float by the next one towards zero, which rounds
// to the same bf16.
inline float settled(float x) {
  auto u = std::bit_cast<uint32_t>(x);
  settle_word(u);
  return std::bit_cast<float>(u);
}
inline int16_t rest_of(float settled) { return int16_t(std::bit_cast<uint32_t>(settled)); }
inline float joined(bf16 rounding, int16_t rest) {
  return std::bit_cast<float>((uint32_t(rounding.bits) << 16) + uint32_t(int32_t(rest)));
}

}  // namespace athanor
