// Accuracy of the elementary functions, and rows of every float type.
#include "cpu/simd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/larger_error.h"

namespace athanor {
namespace {

// Distance in units of the last place of the right answer.
double ulps(float got, double want) {
  const float w = std::abs(float(want));
  return std::abs(double(got) - want) / (double(std::nextafter(w, std::numeric_limits<float>::infinity())) - double(w));
}

template <class T>
ATHANOR_CLONES void exp_row(T* dst, const T* src, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dst[i] = from_float<T>(fast_exp(to_float(src[i])));
}

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Simd, ExpIsAccurateInTheWholeRange) {
  std::vector<float> x;
  for (float v = -87; v < 88.7f; v += 0.00173f) x.push_back(v);
  std::vector<float> y(x.size());
  exp_row(y.data(), x.data(), int64_t(x.size()));
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = testing::larger_error(worst, ulps(y[i], std::exp(double(x[i]))));
  EXPECT_LT(worst, 1.5);
}

TEST(Simd, ExpHandlesOverflowUnderflowAndNan) {
  const float x[] = {-kInf, kInf, std::nanf(""), -200, -100, 89, 0, -0.0f, 1e30f, -1e30f};
  float y[10];
  exp_row(y, x, 10);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], kInf);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 0);
  EXPECT_NEAR(y[4] / std::exp(-100.0), 1, 0.02);  // subnormal: only few bits remain
  EXPECT_EQ(y[5], kInf);
  EXPECT_EQ(y[6], 1);
  EXPECT_EQ(y[7], 1);
  EXPECT_EQ(y[8], kInf);
  EXPECT_EQ(y[9], 0);
}

template <class T>
ATHANOR_CLONES void round_trip(T* dst, float* middle, const T* src, int64_t n) {
  load_row(middle, src, n);
  store_row(dst, middle, n);
}

TEST(Simd, SixteenBitFloatsRoundTrip) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = uint16_t(i);
  std::vector<float> middle(bits.size());
  const auto check = [&]<class T>() {
    std::vector<T> from(bits.size()), to(bits.size());
    for (size_t i = 0; i < bits.size(); ++i) from[i].bits = bits[i];
    round_trip(to.data(), middle.data(), from.data(), int64_t(bits.size()));
    for (size_t i = 0; i < bits.size(); ++i) {
      if (std::isnan(to_float(from[i])))
        ASSERT_TRUE(std::isnan(to_float(to[i]))) << i;
      else
        ASSERT_EQ(to[i].bits, from[i].bits) << i;
      ASSERT_TRUE(std::isnan(middle[i]) || middle[i] == to_float(from[i])) << i;
    }
  };
  check.operator()<bf16>();
  check.operator()<f16>();
}

}  // namespace
}  // namespace athanor
