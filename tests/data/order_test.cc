// Laws of the sample order: permutations are bijections that look random, blends keep their proportions at every
// moment.
#include "data/order.h"

#include <cstdlib>
#include <numeric>
#include <set>

#include "data_testing.h"

namespace athanor {
namespace {

using namespace testing;

void expect_bijection(int64_t size, uint64_t seed, uint64_t stream) {
  const Permutation p(size, seed, stream);
  std::vector<bool> hit(size_t(size), false);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t image = p(i);
    ASSERT_TRUE(0 <= image && image < size) << size << " seed " << seed << " index " << i << " image " << image;
    ASSERT_FALSE(hit[size_t(image)]) << size << " seed " << seed << " hits " << image << " twice";
    hit[size_t(image)] = true;
  }
}

TEST(Permutation, IsABijectionForEverySmallSize) {
  for (int64_t size = 1; size <= 400; ++size)
    for (uint64_t stream = 0; stream < 3; ++stream) expect_bijection(size, uint64_t(size) * 31, stream);
}

TEST(Permutation, IsABijectionForRandomSizes) {
  for (uint64_t i = 0; i < 30; ++i)
    expect_bijection(1 + random_bits(1, 2, i) % 40'000, random_bits(3, 4, i), random_bits(5, 6, i));
  for (int64_t size : {65535, 65536, 65537, 99856 /* 316^2 */, 99857}) expect_bijection(size, 7, 8);
}

TEST(Permutation, HugeSizesStayInRangeAndDoNotRepeat) {
  for (int64_t size : {int64_t{1} << 32, (int64_t{1} << 32) + 1, int64_t{1'000'000'000'007}, (int64_t{1} << 61) - 1}) {
    const Permutation p(size, 11, 12);
    std::set<int64_t> images;
    for (int64_t i = 0; i < 2000; ++i) {
      const int64_t image = p(i * (size / 2001));
      EXPECT_TRUE(0 <= image && image < size);
      images.insert(image);
    }
    EXPECT_EQ(images.size(), 2000u) << size;
  }
}

TEST(Permutation, IndexOutOfRangeIsAnError) {
  const Permutation p(10, 1, 2);
  EXPECT_THROW(p(10), Error);
  EXPECT_THROW(p(-1), Error);
  EXPECT_THROW(Permutation(0, 1, 2), Error);
}

// Two independent permutations of n agree at a fraction 1/n of positions on average: the total is Poisson with mean 1.
TEST(Permutation, SeedsAndStreamsAreIndependent) {
  const int64_t size = 5000;
  for (uint64_t other = 1; other < 20; ++other) {
    int same_seed = 0, same_stream = 0, fixed = 0;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t base = Permutation(size, 0, 0)(i);
      same_stream += base == Permutation(size, other, 0)(i);
      same_seed += base == Permutation(size, 0, other)(i);
      fixed += Permutation(size, other, 0)(i) == i;
    }
    EXPECT_LT(same_stream, 12) << other;  // P < 1e-9
    EXPECT_LT(same_seed, 12) << other;
    EXPECT_LT(fixed, 12) << other;
  }
}

// Every element goes everywhere equally often (chi-square over seeds), for sizes that are squares, primes and in
// between.
TEST(Permutation, EveryImageIsEquallyLikely) {
  constexpr int64_t kSeeds = 3000;
  for (int64_t size : {2, 3, 4, 5, 6, 7, 9, 12, 17, 31}) {
    std::vector<int64_t> count(size_t(size * size));
    for (int64_t seed = 0; seed < kSeeds; ++seed) {
      const Permutation p(size, uint64_t(seed), 5);
      for (int64_t i = 0; i < size; ++i) ++count[size_t(i * size + p(i))];
    }
    const double expected = double(kSeeds) / double(size);
    double chi2 = 0;
    for (int64_t c : count) chi2 += (double(c) - expected) * (double(c) - expected) / expected;
    const double freedom = double((size - 1) * (size - 1));
    EXPECT_LT(chi2, freedom + 5 * std::sqrt(2 * freedom) + 10) << size;
  }
}

// Properties of random permutations: half are odd, all distances of neighbours are equally likely, and the mean number
// of cycles is the harmonic number. Thresholds: 5 standard deviations.
TEST(Permutation, SmallSizesAreUniformInPairsAndParity) {
  constexpr int64_t kSeeds = 4000;
  for (int64_t size : {5, 6, 7, 8, 10, 12, 24, 48, 120, 127, 128}) {
    std::vector<double> distances(size_t(size), 0.0);
    double odd = 0;
    for (int64_t seed = 0; seed < kSeeds; ++seed) {
      const Permutation p(size, uint64_t(seed), 5);
      std::vector<bool> seen(size_t(size), false);
      int64_t cycles = 0;
      for (int64_t i = 0; i < size; ++i) {
        if (i > 0) ++distances[size_t((p(i) - p(i - 1) + size) % size)];
        cycles += seen[size_t(i)] ? 0 : 1;
        for (int64_t j = i; !seen[size_t(j)]; j = p(j)) seen[size_t(j)] = true;
      }
      odd += double((size - cycles) % 2);
    }
    EXPECT_NEAR(odd / kSeeds, 0.5, 5 * 0.5 / std::sqrt(double(kSeeds))) << size;
    double chi2 = 0;
    for (int64_t d = 1; d < size; ++d) {
      const double missed = distances[size_t(d)] - double(kSeeds);
      chi2 += missed * missed / double(kSeeds);
    }
    const double freedom = double(size - 2);
    EXPECT_LT(chi2, freedom + 5 * std::sqrt(2 * freedom) + 10) << size;
  }
}

// Neighbours in the order must not be neighbours in the data.
TEST(Permutation, NeighboursAreSeparated) {
  const int64_t size = 100'000;
  const Permutation p(size, 1, 1);
  int near = 0;
  double lag = 0;  // serial correlation
  for (int64_t i = 0; i + 1 < size; ++i) {
    near += std::abs(p(i) - p(i + 1)) <= 50;
    lag += (double(p(i)) / double(size) - 0.5) * (double(p(i + 1)) / double(size) - 0.5) * 12;
  }
  EXPECT_NEAR(near, 100, 60);  // 2 * 50 / size of size
  EXPECT_NEAR(lag / double(size), 0, 5 / std::sqrt(size));
}

// The order is part of a run's identity: changing these numbers would change the data of resumed runs.
TEST(Permutation, ReproducesGoldenValues) {
  const Permutation p(1000, 42, 7);
  std::vector<int64_t> images;
  for (int64_t i = 0; i < 8; ++i) images.push_back(p(i));
  EXPECT_EQ(images, (std::vector<int64_t>{913, 698, 378, 146, 670, 384, 253, 125}));
  images.clear();
  for (int64_t i = 0; i < 8; ++i) images.push_back(Permutation(8, 42, 7)(i));
  EXPECT_EQ(images, (std::vector<int64_t>{1, 5, 7, 4, 0, 6, 2, 3}));
}

// ---- Blend

void expect_proportions(const std::vector<double>& weights, int64_t samples) {
  const Blend blend(weights);
  std::vector<int64_t> given(weights.size());
  for (int64_t n = 0; n < samples; ++n) {
    const auto [source, position] = blend(n);
    ASSERT_EQ(position, given[size_t(source)]) << "a source's samples must come in order, without gaps; n " << n;
    ++given[size_t(source)];
    for (size_t i = 0; i < weights.size(); ++i) {
      const double due = double(n + 1) * double(blend.shares()[i]) / double(blend.period());
      ASSERT_LT(std::abs(double(given[i]) - due), 1.0) << "source " << i << " after sample " << n;
    }
  }
}

TEST(Blend, KeepsEveryProportionWithinOneSampleAlways) {
  expect_proportions({1}, 100);
  expect_proportions({1, 1}, 1000);
  expect_proportions({0.7, 0.3}, 1000);
  expect_proportions({1, 2, 3, 4}, 1000);
  expect_proportions({1000, 1, 1, 1}, 5000);
  expect_proportions({0.5, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05}, 1000);
  expect_proportions(std::vector<double>(50, 1.0), 500);
}

TEST(Blend, KeepsProportionsOfRandomWeights) {
  for (uint64_t trial = 0; trial < 8; ++trial) {
    std::vector<double> weights;
    const uint64_t sources = 2 + random_bits(9, trial, 0) % 12;
    for (uint64_t i = 0; i < sources; ++i) weights.push_back(0.01 + random_uniform(9, trial, i + 1));
    expect_proportions(weights, 20'000);
  }
}

TEST(Blend, RoundWeightsAreExact) {
  EXPECT_EQ(Blend({0.7, 0.3}).shares(), (std::vector<int64_t>{7, 3}));
  EXPECT_EQ(Blend({70, 30}).shares(), (std::vector<int64_t>{7, 3}));
  EXPECT_EQ(Blend({1, 1, 1}).shares(), (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(Blend({2, 6}).shares(), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(Blend({0.333, 0.667}).shares(), (std::vector<int64_t>{333, 667}));
  EXPECT_EQ(Blend({1e-300, 3e-300}).shares(), (std::vector<int64_t>{1, 3}));
}

TEST(Blend, OtherWeightsAreCloseToExact) {
  const std::vector<double> weights = {3.14159265358979, 2.71828182845905, 0.001234567};
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  const Blend blend(weights);
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_NEAR(double(blend.shares()[i]) / double(blend.period()), weights[i] / total, 1.0 / (1 << 18));
}

// A pure function: asking for a late sample needs no earlier ones, at any distance.
TEST(Blend, LateSamplesFollowTheirPeriod) {
  const Blend blend({0.7, 0.2, 0.1});
  for (int64_t n : {int64_t{1'000'000'000}, int64_t{1} << 60})
    for (int64_t i = 0; i < 10; ++i) {
      const auto late = blend(n / 10 * 10 + i), early = blend(i);
      EXPECT_EQ(late.source, early.source);
      EXPECT_EQ(late.position - early.position, n / 10 * blend.shares()[size_t(late.source)]);
    }
}

TEST(Blend, BadWeightsAreErrors) {
  for (double bad : {0.0, -1.0, double(INFINITY), double(NAN)}) EXPECT_ERROR(Blend({1.0, bad}), "weight", "positive");
  EXPECT_ERROR(Blend({1.0, 1e-9}), "1e-09", "1/262144");
  EXPECT_ERROR(Blend({1e308, 1e308}), "sum");
  EXPECT_THROW(Blend(std::vector<double>{}), Error);
}

// ---- Mixture

TEST(Mixture, OneStageEqualsItsBlend) {
  const std::vector<double> weights = {0.7, 0.2, 0.1};
  const Blend blend(weights);
  const Mixture mixture({{0, weights}});
  for (int64_t n = 0; n < 100; ++n) {
    EXPECT_EQ(mixture(n).source, blend(n).source);
    EXPECT_EQ(mixture(n).position, blend(n).position);
  }
}

// With any stages, no sample of a source is repeated or skipped, and each stage has its own proportions.
TEST(Mixture, StagesContinueSourcesWithoutGapsOrRepeats) {
  const std::vector<MixtureStage> stages = {
      {0, {9, 1, 0}}, {37, {1, 1, 2}}, {37, {1, 0, 1}}, {150, {0, 0, 1}}, {163, {0.3, 0.6, 0.1}}};
  const Mixture mixture(stages);
  std::vector<int64_t> given(3), at_begin(3);
  for (int64_t n = 0; n < 400; ++n) {
    ASSERT_EQ(mixture.given(n), given) << n;
    if (n == 37 || n == 150 || n == 163) at_begin = given;
    const auto [source, position] = mixture(n);
    ASSERT_EQ(position, given[size_t(source)]) << n;
    ++given[size_t(source)];
    const MixtureStage& stage = n < 37 ? stages[0] : n < 150 ? stages[2] : n < 163 ? stages[3] : stages[4];
    const double total = std::accumulate(stage.weights.begin(), stage.weights.end(), 0.0);
    for (size_t i = 0; i < 3; ++i)
      ASSERT_LT(std::abs(double(given[i] - at_begin[i]) - double(n + 1 - stage.from) * stage.weights[i] / total), 1.0)
          << "source " << i << " after sample " << n;
  }
}

}  // namespace
}  // namespace athanor
