// The numbers behind 8-bit indices of quantized moments: those of bitsandbytes' create_dynamic_map, and the nearest one
// to any number.
#include "ops/dynamic_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"

namespace athanor {
namespace {

// As create_dynamic_map() makes them: without order, and sorted at the end.
std::vector<double> numbers(bool is_signed) {
  std::vector<double> all{0, 1};
  for (int i = 0; i < 7; ++i) {
    const int cuts = (1 << (is_signed ? i : i + 1)) + 1;
    for (int j = 0; j + 1 < cuts; ++j) {
      const double low = 0.1 + 0.9 * j / (cuts - 1), high = 0.1 + 0.9 * (j + 1) / (cuts - 1);
      const double x = std::pow(10, i - 6) * (low + high) / 2;
      all.push_back(x);
      if (is_signed) all.push_back(-x);
    }
  }
  std::ranges::sort(all);
  return all;
}

TEST(DynamicMap, MatchesBitsandbytes) {
  for (const bool is_signed : {true, false}) {
    const DynamicMap& map = is_signed ? kSignedMap : kUnsignedMap;
    const std::vector<double> want = numbers(is_signed);
    ASSERT_EQ(want.size(), 256U);
    for (size_t i = 0; i < 256; ++i) EXPECT_NEAR(map.value[i], want[i], 1e-7 * std::abs(want[i])) << i;
  }
  EXPECT_EQ(kSignedMap.value[127], 0);
  EXPECT_FLOAT_EQ(kSignedMap.value[0], -0.99296875f);
  EXPECT_FLOAT_EQ(kSignedMap.value[128], 5.5e-7f);
  EXPECT_FLOAT_EQ(kUnsignedMap.value[1], 3.25e-7f);
}

TEST(DynamicMap, QuantizationRoundsToNearestAndRoundTrips) {
  for (const bool is_signed : {true, false}) {
    const DynamicMap& map = is_signed ? kSignedMap : kUnsignedMap;
    const auto distance = [&](int code, float x) { return std::abs(double(map.value[code]) - double(x)); };
    std::vector<float> all(map.value, map.value + 256);
    all.insert(all.end(), map.bound, map.bound + 255);
    for (const float bound : map.bound) all.push_back(std::nextafterf(bound, -2));
    for (uint64_t i = 0; i < 20000; ++i) {
      const auto size = float(std::pow(10, -8 * double(random_uniform(1, 2, i))));
      all.push_back(is_signed && i % 2 == 1 ? -size : size);
    }
    for (const float x : all) {
      const int code = nearest_code(map.bound, x);
      if (code > 0) {
        EXPECT_LE(distance(code, x), distance(code - 1, x)) << x;
      }
      if (code < 255) {
        EXPECT_LT(distance(code, x), distance(code + 1, x)) << x << ": of two the larger";
      }
    }
    for (int code = 0; code < 256; ++code) EXPECT_EQ(nearest_code(map.bound, map.value[code]), code);
  }
}

TEST(DynamicMap, OnlyAZeroSecondMomentQuantizesToZero) {
  EXPECT_EQ(code_of_v(kUnsignedMap.bound, 1e-12f, 1), 1);
  EXPECT_EQ(code_of_v(kUnsignedMap.bound, 0, 1), 0);
  EXPECT_EQ(code_of_v(kUnsignedMap.bound, 0, 0), 0);
  EXPECT_EQ(code_of_m(kSignedMap.bound, 0, 0), 127);
  EXPECT_EQ(code_of_m(kSignedMap.bound, -3, 3), 0);
  EXPECT_EQ(code_of_m(kSignedMap.bound, 3, 3), 255);
}

}  // namespace
}  // namespace athanor
