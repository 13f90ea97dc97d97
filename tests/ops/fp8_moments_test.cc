// Codes of moments in FP8: the numbers of E4M3 and E5M2, rounded without bias.
#include "ops/fp8_moments.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace athanor {
namespace {

// Of a format: the numbers, what they stand for, and how often random bits round a share up.
template <class Code>
void expect_numbers(const Fp8Shares& shares, int largest) {
  for (int code = 0; code <= largest; ++code)
    for (const int sign : {0, 0x80}) {
      const float number = to_float(Code{uint8_t(code | sign)});
      EXPECT_EQ(shares.value[code | sign], float(double(number) / double(Code::kMost))) << code;
      for (const uint32_t random : {1u, 0x8000u, 0xffffu})  // 0 may meet a product that was rounded down
        EXPECT_EQ(round_share<Code>(shares.value[code | sign], random), code | sign) << "a code stays what it is";
    }
  EXPECT_EQ(shares.value[largest], 1);
}

template <class Code>
void expect_no_bias(const Fp8Shares& shares, float share) {
  double mean = 0;
  for (uint32_t random = 0; random < 65536; ++random)
    mean += double(shares.value[round_share<Code>(share, random)]) / 65536;
  const double gap = std::max(std::abs(double(share)) / 4, 4.4e-6);
  EXPECT_NEAR(mean, double(share), gap / 65536 + 1e-7 * std::abs(double(share))) << share;
}

TEST(Fp8Moments, HaveTheNumbersOfTheirFormats) {
  expect_numbers<f8_e4m3>(kE4m3Shares, 0x7e);
  expect_numbers<f8_e5m2>(kE5m2Shares, 0x7b);
}

TEST(Fp8Moments, AreRoundedWithoutBias) {
  for (uint64_t i = 0; i < 40; ++i) {
    const auto share = float(std::pow(10, -7 * double(random_uniform(1, 2, i))) * (i % 2 == 1 ? -1 : 1));
    expect_no_bias<f8_e4m3>(kE4m3Shares, share);
    expect_no_bias<f8_e5m2>(kE5m2Shares, share);
  }
}

TEST(Fp8Moments, OnlyZeroIsASecondMomentOfZero) {
  for (const uint32_t random : {0u, 0xffffffffu}) {
    EXPECT_EQ(fp8_of_v(1e-30f, 1, random), 1);
    EXPECT_EQ(fp8_of_v(0, 1, random), 0);
    EXPECT_EQ(fp8_of_v(0, 0, random), 0);
    EXPECT_EQ(fp8_of_m(0, 0, random), 0);
    EXPECT_EQ(fp8_of_m(3, 3, random), 0x7e);
    EXPECT_EQ(fp8_of_m(-3, 3, random), 0xfe);
    EXPECT_EQ(fp8_of_v(3, 3, random), 0x7b);
  }
  EXPECT_EQ(fp8_of_m(1e-30f, 1, 0x80000000u), 0);
}

}  // namespace
}  // namespace athanor
