// 16-bit floats against definitions in double: every pattern, every tie, random values.
#include "tensor/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace athanor {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Format {
  int exponent_bits, mantissa_bits;
  uint32_t sign() const { return 0x8000u; }
  uint32_t infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
};
constexpr Format kF16{5, 10}, kBf16{8, 7};

// The value of a non-negative finite pattern, from the definition of the format. [IEEE 754-2019, 3.4]
double value_of(const Format& f, uint32_t bits) {
  const int exponent = int(bits >> f.mantissa_bits), bias = (1 << (f.exponent_bits - 1)) - 1;
  const double fraction = double(bits & ((1u << f.mantissa_bits) - 1)) / double(1u << f.mantissa_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
}

template <class T>
class Half : public testing::Test {
 protected:
  static constexpr Format format = std::is_same_v<T, f16> ? kF16 : kBf16;
  static T pattern(uint32_t bits) { return T{uint16_t(bits)}; }
  // Both signs of x round to `bits`.
  static void expect_rounds(float x, uint32_t bits) {
    ASSERT_EQ(from_float<T>(x).bits, bits) << std::hexfloat << x;
    ASSERT_EQ(from_float<T>(-x).bits, bits | format.sign()) << std::hexfloat << -x;
  }
};
using Formats = testing::Types<f16, bf16>;
TYPED_TEST_SUITE(Half, Formats);

TYPED_TEST(Half, EveryEncodingHasItsValueAndRoundTrips) {
  const Format f = this->format;
  for (uint32_t bits = 0; bits < 0x8000; ++bits)
    for (uint32_t sign : {0u, f.sign()}) {
      const float x = to_float(this->pattern(bits | sign));
      if (bits > f.infinity()) {
        ASSERT_TRUE(std::isnan(x)) << bits;
        const uint32_t back = from_float<TypeParam>(x).bits;
        ASSERT_GT(back & 0x7fffu, f.infinity()) << bits;
        ASSERT_EQ(back & f.sign(), sign) << bits;
        continue;
      }
      const double want = bits == f.infinity() ? kInf : value_of(f, bits);
      ASSERT_EQ(double(x), sign ? -want : want) << bits;
      ASSERT_EQ(std::signbit(x), sign != 0) << bits;
      ASSERT_EQ(from_float<TypeParam>(x).bits, bits | sign);
    }
}

// Midpoints of neighbours are exact floats, so every tie is tested, and the floats next to it.
TYPED_TEST(Half, TiesRoundToEven) {
  const Format f = this->format;
  for (uint32_t low = 0; low < f.infinity(); ++low) {
    const double next = low + 1 == f.infinity() ? 2 * value_of(f, low) - value_of(f, low - 1) : value_of(f, low + 1);
    const double middle = (value_of(f, low) + next) / 2;
    if (middle > double(std::numeric_limits<float>::max())) continue;
    const float tie = float(middle);
    ASSERT_EQ(double(tie), middle);
    this->expect_rounds(tie, low % 2 ? low + 1 : low);
    this->expect_rounds(std::nextafter(tie, 0.0f), low);
    this->expect_rounds(std::nextafter(tie, kInf), low + 1);
  }
}

TYPED_TEST(Half, RandomFloatsRoundToNearest) {
  const Format f = this->format;
  for (uint64_t i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(random_bits(3, 1, i) & 0x7fffffffu);
    if (std::isnan(x)) continue;
    const uint32_t got = from_float<TypeParam>(x).bits;
    ASSERT_LE(got, f.infinity()) << x;
    if (got == f.infinity()) {
      const double most = value_of(f, f.infinity() - 1), step = most - value_of(f, f.infinity() - 2);
      ASSERT_GE(double(x), most + step / 2);
      continue;
    }
    const double distance = std::abs(double(x) - value_of(f, got));
    for (uint32_t neighbour : {got ? got - 1 : 0, std::min(got + 1, f.infinity() - 1)})
      ASSERT_LE(distance, std::abs(double(x) - value_of(f, neighbour))) << x;
  }
}

TYPED_TEST(Half, NanAndInfinityAreKept) {
  EXPECT_EQ(from_float<TypeParam>(kInf).bits, this->format.infinity());
  EXPECT_EQ(from_float<TypeParam>(-kInf).bits, this->format.infinity() | 0x8000u);
  for (uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const TypeParam h = from_float<TypeParam>(std::bit_cast<float>(nan));
    EXPECT_GT(h.bits & 0x7fffu, this->format.infinity()) << std::hex << nan;
    EXPECT_TRUE(std::isnan(to_float(h)));
  }
}

TEST(F16, OverflowsFrom65520) {
  EXPECT_EQ(from_float<f16>(65519.996f).bits, 0x7bff);
  EXPECT_EQ(from_float<f16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(from_float<f16>(1e30f).bits, 0x7c00);
}

TEST(Tf32, RoundsToTenBitsTiesAwayFromZero) {
  for (uint64_t i = 0; i < 100000; ++i) {
    // Half of the samples are exact ties: low 13 bits 0x1000.
    uint32_t u = random_bits(4, 2, i) & 0x7fffffffu;
    if (i & 1) u = (u & ~0x1fffu) | 0x1000u;
    const float x = std::bit_cast<float>(u);
    if (!std::isfinite(x) || !std::isnormal(x)) continue;
    int exponent;
    std::frexp(x, &exponent);
    const double quantum = std::ldexp(1.0, exponent - 11);
    const double want = std::floor(double(x) / quantum + 0.5) * quantum;
    if (want > double(std::numeric_limits<float>::max())) continue;
    ASSERT_EQ(double(round_tf32(x)), want) << std::hexfloat << x;
    ASSERT_EQ(double(round_tf32(-x)), -want) << std::hexfloat << x;
    ASSERT_EQ(round_tf32(round_tf32(x)), round_tf32(x));
  }
}

TEST(Tf32, KeepsZerosInfinitiesAndNans) {
  EXPECT_EQ(round_tf32(0.0f), 0.0f);
  EXPECT_TRUE(std::signbit(round_tf32(-0.0f)));
  EXPECT_EQ(round_tf32(kInf), kInf);
  EXPECT_EQ(round_tf32(-kInf), -kInf);
  EXPECT_TRUE(std::isnan(round_tf32(std::bit_cast<float>(0x7f800001u))));
  EXPECT_EQ(round_tf32(std::numeric_limits<float>::max()), kInf);
}

// Over all 2^16 upper halves of the random word, x rounds up exactly as often as its lower 16 bits state.
TEST(StochasticRounding, RoundsUpWithTheExactProbability) {
  for (uint32_t u :
       {0x3f800000u, 0x3f800001u, 0x3f808000u, 0x3f80ffffu, 0xbf804000u, 0x00000001u, 0x7f7f1234u, 0xc2281fffu}) {
    const uint32_t fraction = u & 0xffffu;
    uint32_t up = 0;
    for (uint32_t r = 0; r < 0x10000; ++r) {
      const uint16_t got = round_stochastic(std::bit_cast<float>(u), r << 16 | 0xabcd).bits;
      ASSERT_TRUE(got == u >> 16 || got == (u >> 16) + 1) << std::hex << u;
      up += got != u >> 16;
    }
    EXPECT_EQ(up, fraction) << std::hex << u;
  }
}

// Every upper half with the lower halves where something changes, and others.
template <class Fn>
void for_floats(const Fn& fn) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (uint32_t lower : {0u, 1u, 0x7ffeu, 0x7fffu, 0x8000u, 0x8001u, 0xfffeu, 0xffffu}) fn(upper << 16 | lower);
    for (uint64_t i = 0; i < 16; ++i) fn(upper << 16 | (random_bits(4, upper, i) & 0xffffu));
  }
}

TEST(Halves, RejoinToTheCanonicalFloat) {
  int64_t moved = 0;
  for_floats([&](uint32_t u) {
    const float x = settled(std::bit_cast<float>(u));
    const bf16 rounding = from_float<bf16>(x);
    const float again = joined(rounding, rest_of(x));
    if (std::isnan(std::bit_cast<float>(u))) {
      ASSERT_TRUE(std::isnan(x) && std::isnan(to_float(rounding)) && std::isnan(again)) << std::hex << u;
      return;
    }
    ASSERT_EQ(std::bit_cast<uint32_t>(again), std::bit_cast<uint32_t>(x)) << std::hex << u;
    ASSERT_EQ(rounding.bits, from_float<bf16>(std::bit_cast<float>(u)).bits) << std::hex << u;
    if (std::bit_cast<uint32_t>(x) == u) return;
    ++moved;  // a tie that goes down to the even number, by one unit towards zero
    ASSERT_EQ(u & 0xffffu, 0x8000u);
    ASSERT_EQ(rounding.bits, u >> 16);
    ASSERT_EQ(std::bit_cast<uint32_t>(x), u - 1);
  });
  EXPECT_GE(moved, 32768 - 128);  // one of each even upper half that is no NaN
  EXPECT_EQ(joined({0}, 0), 0.0f) << "memory of zeros holds zeros";
}

TEST(Halves, CanonicalFloatsAreStable) {
  for_floats([](uint32_t u) {
    const float x = settled(std::bit_cast<float>(u));
    ASSERT_EQ(std::bit_cast<uint32_t>(settled(x)), std::bit_cast<uint32_t>(x)) << std::hex << u;
  });
}

TEST(StochasticRounding, KeepsNanAndInfinity) {
  for (uint32_t r : {0u, 0xffffffffu}) {
    EXPECT_EQ(round_stochastic(kInf, r).bits, 0x7f80);
    EXPECT_EQ(round_stochastic(-kInf, r).bits, 0xff80);
    EXPECT_TRUE(std::isnan(to_float(round_stochastic(std::bit_cast<float>(0x7f800001u), r))));
    EXPECT_TRUE(std::isnan(to_float(round_stochastic(std::bit_cast<float>(0xffffffffu), r))));
  }
}

}  // namespace
}  // namespace athanor
