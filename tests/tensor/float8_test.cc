// 8-bit and 4-bit floats against definitions in double: every encoding, every bf16, every boundary between two values
// and the floats next to it, found by search over all encodings.
#include "tensor/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace athanor {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

template <class T>
struct Format;
template <>
struct Format<f8_e4m3> {
  static constexpr int kMantissa = 3, kBias = 7, kMaxValue = 0x7e, kSign = 0x80;  // beyond: NaN
};
template <>
struct Format<f8_e5m2> {
  static constexpr int kMantissa = 2, kBias = 15, kMaxValue = 0x7b, kSign = 0x80;  // beyond: infinity, NaN
};

template <>
struct Format<f4_e2m1> {
  static constexpr int kMantissa = 1, kBias = 1, kMaxValue = 0x7, kSign = 0x8;
};

// Value of a finite encoding without sign. [OCP Microscaling Formats 1.0, sec. 5.3]
template <class T>
double value_of(int code) {
  using F = Format<T>;
  const int exponent = code >> F::kMantissa;
  const double fraction = double(code & ((1 << F::kMantissa) - 1)) / double(1 << F::kMantissa);
  return exponent == 0 ? std::ldexp(fraction, 1 - F::kBias) : std::ldexp(1 + fraction, exponent - F::kBias);
}

// Nearest encoding by search; ties to even. Saturates beyond the maximum.
template <class T>
int nearest(double x) {
  if (x > value_of<T>(Format<T>::kMaxValue)) return Format<T>::kMaxValue;
  int best = 0;
  for (int code = 1; code <= Format<T>::kMaxValue; ++code) {
    const double d = std::abs(value_of<T>(code) - x), least = std::abs(value_of<T>(best) - x);
    if (d < least || (d == least && code % 2 == 0)) best = code;
  }
  return best;
}

template <class T>
void expect_rounds(float x) {
  const int want = nearest<T>(double(x));
  ASSERT_EQ(from_float<T>(x).bits, want) << std::hexfloat << x;
  ASSERT_EQ(from_float<T>(-x).bits, want | Format<T>::kSign) << std::hexfloat << -x;
}

template <class T>
class Float8 : public testing::Test {};
using Types = testing::Types<f8_e4m3, f8_e5m2, f4_e2m1>;
TYPED_TEST_SUITE(Float8, Types);

TYPED_TEST(Float8, EveryEncodingHasItsValueAndRoundTrips) {
  using T = TypeParam;
  EXPECT_EQ(value_of<T>(Format<T>::kMaxValue), double(T::kMost));
  for (int code = 0; code < Format<T>::kSign; ++code)
    for (const int sign : {0, Format<T>::kSign}) {
      const float x = to_float(T{uint8_t(code | sign)});
      if (code <= Format<T>::kMaxValue) {
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

TYPED_TEST(Float8, EveryBf16RoundsToNearest) {
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) expect_rounds<TypeParam>(to_float(bf16{uint16_t(bits)}));
}

// Midpoints of neighbours are exact floats, so every tie is tested, and the floats next to it.
TYPED_TEST(Float8, TiesRoundToEven) {
  using T = TypeParam;
  for (int code = 0; code < Format<T>::kMaxValue; ++code) {
    const auto tie = float((value_of<T>(code) + value_of<T>(code + 1)) / 2);
    ASSERT_EQ(from_float<T>(tie).bits, code % 2 ? code + 1 : code) << code;
    for (const float x : {std::nextafter(tie, 0.0f), tie, std::nextafter(tie, kInf)}) expect_rounds<T>(x);
  }
}

TYPED_TEST(Float8, RandomFloatsRoundToNearest) {
  for (uint64_t i = 0; i < 20000; ++i) {
    const uint32_t bits = random_bits(1, stream_of("float8"), i) & 0x7fffffffu;
    const float anywhere = std::bit_cast<float>(bits),
                in_range = std::ldexp(1 + float(bits % 8191) / 8192, int(i % 36) - 18);
    if (std::isfinite(anywhere)) expect_rounds<TypeParam>(anywhere);
    expect_rounds<TypeParam>(in_range);
  }
}

TYPED_TEST(Float8, OverflowSaturatesAndNanIsKept) {
  using T = TypeParam;
  for (const float x : {T::kMost * 1.0625f, std::numeric_limits<float>::max(), kInf}) {
    EXPECT_EQ(to_float(from_float<T>(x)), T::kMost);
    EXPECT_EQ(to_float(from_float<T>(-x)), -T::kMost);
  }
  for (const uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xffc00000u, 0xffffffffu})
    EXPECT_EQ(from_float<T>(std::bit_cast<float>(nan)).bits, Format<T>::kSign - 1);
}

// From this value on the next encoding would be nearer, if it existed.
TYPED_TEST(Float8, SaturatesHalfwayToTheNextCode) {
  using T = TypeParam;
  const double gap = double(T::kMost) - value_of<T>(Format<T>::kMaxValue - 1);
  EXPECT_EQ(double(T::kSaturates), double(T::kMost) + gap / 2);
}

// Results of ml_dtypes 0.5 (float4_e2m1fn, numpy's astype): the floats around every boundary between two values, and
// how many finite bf16 of one sign round to each encoding.
TEST(Float4, MatchesMlDtypes) {
  const int quantized[][3] = {{0, 0, 1}, {1, 2, 2}, {2, 2, 3}, {3, 4, 4}, {4, 4, 5}, {5, 6, 6}, {6, 6, 7}};
  const float boundaries[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  for (size_t i = 0; i < 7; ++i) {
    const float at = boundaries[i];
    const float around[] = {std::nextafter(at, 0.0f), at, std::nextafter(at, kInf)};
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(from_float<f4_e2m1>(around[k]).bits, quantized[i][k]) << around[k];
      EXPECT_EQ(from_float<f4_e2m1>(-around[k]).bits, quantized[i][k] | 8) << -around[k];
    }
  }
  std::vector<int> counts(16);
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    if (const float x = to_float(bf16{uint16_t(bits)}); std::isfinite(x)) ++counts[from_float<f4_e2m1>(x).bits];
  EXPECT_EQ(counts, (std::vector<int>{16001, 191, 97, 63, 65, 63, 65, 16095, 16001, 191, 97, 63, 65, 63, 65, 16095}));
}

// Between two values the upper one is chosen with a probability equal to x's fractional position, in units of 2^-24;
// exact values are unchanged.
TEST(Float4, StochasticRoundingIsUnbiased) {
  for (int code = 0; code < 0x7; ++code)
    for (int part = 0; part < 64; ++part) {
      const double below = value_of<f4_e2m1>(code), gap = value_of<f4_e2m1>(code + 1) - below;
      const auto x = float(below + gap * part / 64);
      const auto turn = uint32_t(part) << 26;  // smallest random number that rounds down
      EXPECT_EQ(round_at_random(x, turn).bits, code) << x;
      EXPECT_EQ(round_at_random(x, ~0u).bits, code) << x;
      EXPECT_EQ(round_at_random(x, turn == 0 ? 0 : turn - 1).bits, part == 0 ? code : code + 1) << x;
      EXPECT_EQ(round_at_random(-x, 0).bits, (part == 0 ? code : code + 1) | 8) << x;
    }
  for (const uint32_t random : {0u, ~0u}) {
    for (const float x : {6.0f, 6.5f, 1e30f, kInf}) {
      EXPECT_EQ(round_at_random(x, random).bits, 0x7) << x;
      EXPECT_EQ(round_at_random(-x, random).bits, 0xf) << x;
    }
    EXPECT_EQ(round_at_random(std::numeric_limits<float>::quiet_NaN(), random).bits, 0x7);
  }
  double sum = 0;
  for (uint64_t i = 0; i < 20000; ++i)
    sum += double(to_float(round_at_random(-2.3f, random_bits(1, stream_of("at random"), i))));
  EXPECT_NEAR(sum / 20000, -2.3, 0.02);
}

TEST(GlobalScale, KeepsBlockScalesWithinE4m3) {
  for (uint64_t i = 0; i < 5000; ++i) {
    const float amax = std::ldexp(1 + random_uniform(3, stream_of("amax"), i), int(i % 220) - 95);
    const GlobalScale global = global_scale(amax);
    ASSERT_NEAR(double(global.factor) * double(global.scale), 1, 1e-6);
    ASSERT_EQ(to_float(block_scale(amax, global).scale), f8_e4m3::kMost) << amax;
    // Down to the smallest normal E4M3 a block's amax becomes 6, up to the rounding of its scale.
    const BlockScale block = block_scale(amax * 0x1p-13f, global);
    ASSERT_NEAR(amax * 0x1p-13f * block.factor, 6, 6.0 / 16) << amax;
    ASSERT_NEAR(block.factor * to_float(block.scale) * global.scale, 1, 1e-6) << amax;
    ASSERT_EQ(block_scale(amax * 0x1p-20f, global).factor, 0) << amax;
  }
  EXPECT_EQ(global_scale(0).factor, 1);
  EXPECT_EQ(block_scale(0, global_scale(0)).factor, 0);
  const GlobalScale tiny = global_scale(1e-40f);
  EXPECT_EQ(tiny.factor, 0x1p110f);
  EXPECT_TRUE(std::isfinite(block_scale(1e-40f, tiny).factor));
  for (const float bad : {kInf, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(std::isnan(global_scale(bad).scale));
    EXPECT_EQ(block_scale(1, global_scale(bad)).factor, 0);
  }
}

TEST(E8m0, EveryEncodingIsItsPowerOfTwo) {
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

// The amax maps to the format's maximum and nothing clips; with power-of-two scales it stays above half of the maximum.
TEST(CodeScale, MapsAmaxToTheFormatMaximum) {
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

TEST(CodeScale, HandlesZeroTinyAndNonFiniteAmax) {
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
