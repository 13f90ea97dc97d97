// Philox against published vectors; moments, and independence of sharding, of the numbers drawn from it.
#include "base/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace athanor {
namespace {

using Block = PhiloxBlock;

// Random123 1.14, examples/kat_vectors, philox4x32 with 10 rounds.
TEST(Philox, GivesThePublishedVectors) {
  EXPECT_EQ(philox(0, 0, 0), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint64_t ones = ~uint64_t{0};
  EXPECT_EQ(philox(ones, ones, ones), (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// [Fowler, Noll, Vo: FNV-1a, test vectors for 64 bits]
TEST(Streams, AreFnv1aHashes) {
  EXPECT_EQ(stream_of(""), 0xcbf29ce484222325u);
  EXPECT_EQ(stream_of("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(stream_of("foobar"), 0x85944171f73967e8u);
}

TEST(RandomBits, EqualTheWordsOfConsecutivePhiloxBlocks) {
  for (uint64_t i = 0; i < 64; ++i) EXPECT_EQ(random_bits(5, 6, i), philox(5, 6, i / 4)[i % 4]);
  EXPECT_EQ(random_bits(5, 6, ~uint64_t{0}), philox(5, 6, ~uint64_t{0} >> 2)[3]);  // to the last index
}

TEST(RandomBits, DifferBySeedStreamAndIndex) {
  std::set<uint32_t> seen;
  for (uint64_t a = 0; a < 16; ++a)
    for (uint64_t i = 0; i < 64; ++i) {
      seen.insert(random_bits(a, 100, i));
      seen.insert(random_bits(100, a, i));
      seen.insert(random_bits(a << 32, 100, i));
      seen.insert(random_bits(100, a, i << 34));
    }
  EXPECT_GE(seen.size(), 16u * 64 * 4 - 150);  // a = 0 and i = 0 coincide; 2^32 values hardly ever do
}

TEST(RandomUniform, FillsTheHalfOpenUnitInterval) {
  constexpr int kBins = 20, n = 100000;
  std::vector<int> bins(kBins);
  for (uint64_t i = 0; i < n; ++i) {
    const float u = random_uniform(1, 2, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++bins[size_t(u * kBins)];
  }
  double chi2 = 0;
  for (int count : bins) chi2 += (count - n / kBins) * (count - n / kBins) / double(n / kBins);
  EXPECT_LT(chi2, 43.8);  // 19 degrees of freedom, p = 0.001
}

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0;
};
Moments moments(const std::vector<double>& x) {
  Moments m;
  const double n = double(x.size());
  for (double v : x) m.mean += v / n;
  for (double v : x) m.variance += (v - m.mean) * (v - m.mean) / n;
  for (double v : x) m.skewness += std::pow((v - m.mean) / std::sqrt(m.variance), 3) / n;
  for (double v : x) m.kurtosis += std::pow((v - m.mean) / std::sqrt(m.variance), 4) / n;
  return m;
}

TEST(RandomNormal, HasMomentsAndTailsOfTheNormalDistribution) {
  constexpr size_t n = 200000;
  std::vector<double> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = double(random_normal(42, stream_of("weights"), i));
  const Moments m = moments(x);
  const double sigma = 1 / std::sqrt(double(n));  // bounds are four standard errors
  EXPECT_NEAR(m.mean, 0, 4 * sigma);
  EXPECT_NEAR(m.variance, 1, 4 * std::sqrt(2.0) * sigma);
  EXPECT_NEAR(m.skewness, 0, 4 * std::sqrt(6.0) * sigma);
  EXPECT_NEAR(m.kurtosis, 3, 4 * std::sqrt(24.0) * sigma);
  for (const auto& [z, share] : {std::pair{1.0, 0.158655}, {2.0, 0.0227501}, {3.0, 0.0013499}}) {
    const auto above = double(std::count_if(x.begin(), x.end(), [z = z](double v) { return v > z; })) / double(n);
    EXPECT_NEAR(above, share, 4 * std::sqrt(share * (1 - share)) * sigma) << z;
  }
}

TEST(RandomNormal, NeighboursPairsAndStreamsAreUncorrelated) {
  constexpr size_t n = 100000;
  double neighbours = 0, pairs = 0, streams = 0, squares = 0;
  for (size_t i = 0; i < n; ++i) {
    const double x = random_normal(1, 1, i), y = random_normal(1, 1, i + 1), z = random_normal(1, 2, i);
    neighbours += x * y / double(n);
    if (i % 2 == 0) pairs += x * y / double(n / 2);
    if (i % 2 == 0) squares += (x * x - 1) * (y * y - 1) / double(n / 2);
    streams += x * z / double(n);
  }
  EXPECT_NEAR(neighbours, 0, 0.013);  // four standard errors
  EXPECT_NEAR(pairs, 0, 0.018);
  EXPECT_NEAR(squares, 0, 0.036);
  EXPECT_NEAR(streams, 0, 0.013);
}

TEST(RandomNormal, IsFiniteAtTheExtremesOfItsInput) {
  for (uint64_t i = 0; i < 200000; ++i) ASSERT_LT(std::abs(random_normal(9, 9, i)), 7);
  EXPECT_LT(std::sqrt(-2 * std::log(0.5 * 0x1p-32)), 6.8);  // the largest radius
}

// Value i does not depend on the rank, thread or shard that draws it.
TEST(RandomNormal, DependsOnlyOnTheIndex) {
  std::vector<float> forward, backward;
  for (uint64_t i = 0; i < 100; ++i) forward.push_back(random_normal(7, 8, i));
  for (uint64_t i = 100; i-- > 0;) backward.push_back(random_normal(7, 8, i));
  std::reverse(backward.begin(), backward.end());
  EXPECT_EQ(forward, backward);
}

// Golden values: initial weights must never change.
TEST(RandomNormal, ReproducesGoldenValues) {
  EXPECT_EQ(random_bits(1, 2, 3), philox(1, 2, 0)[3]);
  const auto b = philox(1, 2, 0);
  const double r = std::sqrt(-2 * std::log((b[0] + 0.5) / 4294967296.0)), a = 2 * M_PI * ((b[1] + 0.5) / 4294967296.0);
  EXPECT_FLOAT_EQ(random_normal(1, 2, 0), float(r * std::cos(a)));
  EXPECT_FLOAT_EQ(random_normal(1, 2, 1), float(r * std::sin(a)));
}

}  // namespace
}  // namespace athanor
