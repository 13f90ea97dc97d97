// The learning-rate range test: smoothing, where it ends, what it suggests.
#include "analysis/lr_finder.h"

#include <gtest/gtest.h>

#include <cmath>

namespace athanor {
namespace {

TEST(LrFinder, SmoothingHasNoInitialBias) {
  LrFinder test;
  test.add(1e-8, 3);
  EXPECT_DOUBLE_EQ(test.smoothed()[0], 3);
  test.add(1e-7, 6);
  EXPECT_NEAR(test.smoothed()[1], (0.98 * 3 + 6) / 1.98, 1e-12);
}

TEST(LrFinder, SuggestsWhereTheLossFallsFastest) {
  LrFinder test;
  // Flat, then a fall around the middle, then a rise.
  for (int i = 0; i < 100; ++i) {
    const double fall = 3 / (1 + std::exp(-(i - 50.0) / 4)), rise = i > 80 ? 0.4 * (i - 80) : 0;
    ASSERT_TRUE(test.add(std::pow(10.0, -8 + 8 * i / 99.0), 5 - fall + rise)) << i;
  }
  const auto rate = test.suggestion();
  ASSERT_TRUE(rate);
  // The smoothed loss of the same numbers, differentiated by hand.
  size_t steepest = 11;
  const auto& s = test.smoothed();
  for (size_t i = 11; i < 98; ++i)
    if (s[i + 1] - s[i - 1] < s[steepest + 1] - s[steepest - 1]) steepest = i;
  EXPECT_EQ(*rate, test.rates()[steepest]);
  EXPECT_GT(steepest, 45u);
  EXPECT_LT(steepest, 80u);
}

TEST(LrFinder, EndsWhereTheLossDiverges) {
  LrFinder test;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(test.add(i, 1));
  EXPECT_FALSE(test.add(20, 200));
  EXPECT_EQ(test.rates().size(), 20u);
  EXPECT_FALSE(test.add(21, NAN));
}

TEST(LrFinder, SuggestsNothingForFewPointsOrARisingLoss) {
  LrFinder few, rising;
  for (int i = 0; i < 12; ++i) few.add(i, 10 - i);
  EXPECT_FALSE(few.suggestion());
  for (int i = 0; i < 40; ++i) rising.add(i, 1 + 0.01 * i);
  EXPECT_FALSE(rising.suggestion());
}

}  // namespace
}  // namespace athanor
