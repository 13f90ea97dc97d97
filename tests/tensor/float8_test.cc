// 8-bit floats against definitions in double: every code, every bf16, every boundary between two codes and the floats
// beside it, found by search over all codes.
#include "tensor/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"

namespace athanor {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

template <class T>
struct Format;
template <>
struct Format<f8_e4m3> {
  static constexpr int kMantissa = 3, kBias = 7, kLargest = 0x7e;  // beyond: NaN
};
template <>
struct Format<f8_e5m2> {
  static constexpr int kMantissa = 2, kBias = 15, kLargest = 0x7b;  // beyond: infinity, NaN
};

// The value of a finite code without sign. [OCP Microscaling Formats 1.0, sec. 5.3]
template <class T>
double value_of(int code) {
  using F = Format<T>;
  const int exponent = code >> F::kMantissa;
  const double fraction = double(code & ((1 << F::kMantissa) - 1)) / double(1 << F::kMantissa);
  return exponent == 0 ? std::ldexp(fraction, 1 - F::kBias) : std::ldexp(1 + fraction, exponent - F::kBias);
}

// The nearest code by search; of two the even one. Beyond the largest: the largest.
template <class T>
int nearest(double x) {
  if (x > value_of<T>(Format<T>::kLargest)) return Format<T>::kLargest;
  int best = 0;
  for (int code = 1; code <= Format<T>::kLargest; ++code) {
    const double d = std::abs(value_of<T>(code) - x), least = std::abs(value_of<T>(best) - x);
    if (d < least || (d == least && code % 2 == 0)) best = code;
  }
  return best;
}

template <class T>
void expect_rounds(float x) {
  const int want = nearest<T>(double(x));
  ASSERT_EQ(from_float<T>(x).bits, want) << std::hexfloat << x;
  ASSERT_EQ(from_float<T>(-x).bits, want | 0x80) << std::hexfloat << -x;
}

template <class T>
class Float8 : public testing::Test {};
using Types = testing::Types<f8_e4m3, f8_e5m2>;
TYPED_TEST_SUITE(Float8, Types);

TYPED_TEST(Float8, EveryCodeHasItsValueAndRoundTrips) {
  using T = TypeParam;
  EXPECT_EQ(value_of<T>(Format<T>::kLargest), double(T::kMost));
  for (int code = 0; code < 0x80; ++code)
    for (const int sign : {0, 0x80}) {
      const float x = to_float(T{uint8_t(code | sign)});
      if (code <= Format<T>::kLargest) {
        ASSERT_EQ(double(x), sign ? -value_of<T>(code) : value_of<T>(code)) << code;
        ASSERT_EQ(std::signbit(x), sign != 0) << code;
        ASSERT_EQ(from_float<T>(x).bits, code | sign);
      } else if (std::is_same_v<T, f8_e5m2> && code == 0x7c) {
        ASSERT_EQ(x, sign ? -kInf : kInf);
      } else {
        ASSERT_TRUE(std::isnan(x)) << code;
      }
    }
}

TYPED_TEST(Float8, EveryBf16GoesToTheNearestCode) {
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) expect_rounds<TypeParam>(to_float(bf16{uint16_t(bits)}));
}

// Midpoints of neighbours are floats, so that every tie there is can be tried, and the floats beside it.
TYPED_TEST(Float8, EveryTieGoesToTheEvenCodeAndNothingElseDoes) {
  using T = TypeParam;
  for (int code = 0; code < Format<T>::kLargest; ++code) {
    const auto tie = float((value_of<T>(code) + value_of<T>(code + 1)) / 2);
    ASSERT_EQ(from_float<T>(tie).bits, code % 2 ? code + 1 : code) << code;
    for (const float x : {std::nextafter(tie, 0.0f), tie, std::nextafter(tie, kInf)}) expect_rounds<T>(x);
  }
}

TYPED_TEST(Float8, RandomFloatsGoToTheNearestCode) {
  for (uint64_t i = 0; i < 20000; ++i) {
    const uint32_t bits = random_bits(1, stream_of("float8"), i) & 0x7fffffffu;
    const float anywhere = std::bit_cast<float>(bits),
                in_range = std::ldexp(1 + float(bits % 8191) / 8192, int(i % 36) - 18);
    if (std::isfinite(anywhere)) expect_rounds<TypeParam>(anywhere);
    expect_rounds<TypeParam>(in_range);
  }
}

TYPED_TEST(Float8, WhatIsTooLargeSaturatesAndNanStaysNan) {
  using T = TypeParam;
  for (const float x : {T::kMost * 1.0625f, std::numeric_limits<float>::max(), kInf}) {
    EXPECT_EQ(to_float(from_float<T>(x)), T::kMost);
    EXPECT_EQ(to_float(from_float<T>(-x)), -T::kMost);
  }
  for (const uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xffc00000u, 0xffffffffu})
    EXPECT_EQ(from_float<T>(std::bit_cast<float>(nan)).bits, 0x7f);
}

TEST(E8m0, EveryCodeIsItsPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const float x = to_float(e8m0{uint8_t(code)});
    ASSERT_EQ(double(x), std::ldexp(1.0, code - 127));
    if (code > 0) {
      ASSERT_EQ(as_e8m0(x).bits, code);
    }
  }
  EXPECT_TRUE(std::isnan(to_float(e8m0{255})));
  EXPECT_EQ(as_e8m0(std::numeric_limits<float>::quiet_NaN()).bits, 255);
}

// The largest value reaches the largest code and nothing clips; with powers of two it stays above half of it.
TEST(CodeScale, BringsTheLargestValueToTheLargestCode) {
  for (const float most : {f8_e4m3::kMost, f8_e5m2::kMost})
    for (uint64_t i = 0; i < 5000; ++i) {
      const float amax = std::ldexp(1 + random_uniform(2, stream_of("amax"), i), int(i % 230) - 110);
      const CodeScale exact = code_scale(amax, most, false), power = code_scale(amax, most, true);
      ASSERT_NEAR(amax * exact.factor / most, 1, 1e-6) << amax;
      ASSERT_NEAR(double(exact.factor) * double(exact.scale), 1, 1e-7) << amax;
      ASSERT_EQ(std::bit_cast<uint32_t>(power.factor) & 0x7fffffu, 0u);
      ASSERT_EQ(power.factor * power.scale, 1.0f);
      ASSERT_LE(amax * power.factor, most * (1 + 1e-6f));
      ASSERT_GT(amax * power.factor, most / 2 * (1 - 1e-6f));
      ASSERT_EQ(to_float(as_e8m0(power.scale)), power.scale);
    }
}

TEST(CodeScale, IsDefinedAtTheEdges) {
  for (const bool power : {false, true}) {
    const CodeScale zero = code_scale(0, 448, power);
    EXPECT_EQ(zero.factor, 1);
    EXPECT_EQ(zero.scale, 1);
    for (const float tiny : {1e-40f, std::numeric_limits<float>::denorm_min()}) {
      EXPECT_EQ(code_scale(tiny, 448, power).factor, 0x1p126f);
      EXPECT_EQ(code_scale(tiny, 448, power).scale, 0x1p-126f);
    }
    const CodeScale huge = code_scale(std::numeric_limits<float>::max(), 448, power);
    EXPECT_TRUE(std::isnormal(huge.factor));
    EXPECT_TRUE(std::isfinite(huge.scale));
    for (const float bad : {kInf, std::numeric_limits<float>::quiet_NaN()}) {
      EXPECT_EQ(code_scale(bad, 448, power).factor, 0);
      EXPECT_TRUE(std::isnan(code_scale(bad, 448, power).scale));
    }
  }
}

}  // namespace
}  // namespace athanor
