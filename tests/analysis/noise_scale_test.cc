#include "analysis/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace athanor {
namespace {

// Gradients of single tokens are G plus independent noise; the squared norm of a batch's mean has the expectation
// |G|^2 + tr(S) / tokens.
TEST(NoiseScale, MatchesExpectedGradientNorms) {
  const double signal = 0.25, noise = 90;  // |G|^2 and tr(S)
  NoiseScale scale;
  EXPECT_FALSE(scale.tokens());
  for (int i = 0; i < 3; ++i) {
    scale.add({8, signal + noise / 8}, {64, signal + noise / 64});
    EXPECT_NEAR(scale.tokens().value_or(0), noise / signal, 1e-9 * noise / signal);
  }
}

TEST(NoiseScale, IsEstimatedFromRandomGradients) {
  constexpr int kSize = 40;
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  const auto norm_sq_of_mean = [&](int tokens) {
    double sum = 0;
    for (int i = 0; i < kSize; ++i) {
      double mean = 0.5;  // G
      for (int t = 0; t < tokens; ++t) mean += 2 * normal(random) / tokens;
      sum += mean * mean;
    }
    return sum;
  };
  NoiseScale scale;
  for (int step = 0; step < 2000; ++step) scale.add({4, norm_sq_of_mean(4)}, {32, norm_sq_of_mean(32)});
  EXPECT_NEAR(scale.tokens().value_or(0), 4 * kSize / (0.25 * kSize), 3);
}

TEST(NoiseScale, IsUnknownWithoutSignalAndIgnoresInvalidNorms) {
  NoiseScale scale;
  scale.add({1, 10}, {4, 1});  // the large batch has less than the noise of the small one explains
  EXPECT_FALSE(scale.tokens());
  NoiseScale good;
  good.add({1, 10}, {4, 7});
  const auto before = good.tokens();
  ASSERT_TRUE(before);
  good.add({1, std::nan("")}, {4, 7});
  good.add({4, 10}, {4, 7});  // batches of equal size carry no information
  EXPECT_EQ(good.tokens(), before);
}

}  // namespace
}  // namespace athanor
