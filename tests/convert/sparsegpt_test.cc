// SparseGPT against the published algorithm in NumPy (fixtures/sparsegpt.py), and what pruned outputs keep.
#include "convert/sparsity.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace athanor::test {
namespace {

// The layer of fixtures/sparsegpt.py.
struct Published {
  static constexpr int kOut = 3, kIn = 12, kTokens = 40;
  std::vector<float> weight, hessian = std::vector<float>(kIn * kIn);
  Published() {
    for (int r = 0; r < kOut; ++r)
      for (int c = 0; c < kIn; ++c) weight.push_back(float((r * 7 + c * 5 + r * c) % 11 - 5) / 4 + float(c - r) / 32);
    const auto x = [](int t, int c) { return float((t * t * 3 + c * (t + 2) + c * c * (t % 5)) % 13 - 6) / 4; };
    for (int t = 0; t < kTokens; ++t)
      for (int i = 0; i < kIn; ++i)
        for (int j = 0; j < kIn; ++j) hessian[size_t(i * kIn + j)] += x(t, i) * x(t, j);
  }
  std::vector<float> pruned(const Sparsity& sparsity) const {
    ThreadPool pool(1);
    std::vector<float> w = weight;
    prune_by_sparsegpt({.weight = w, .hessian = hessian, .in = kIn, .what = "w", .mask_block = 8}, sparsity, pool);
    return w;
  }
};

TEST(SparseGpt, MatchesThePublishedAlgorithm) {
  const std::vector<float> half = {
      -1.250000f, 0,         1.310159f,  0,          1.119342f,  0,         0.950176f,  0,         0.699643f,
      0,          0,         -0.624370f, 0,          0,          0,         0,          1.141385f, 0,
      1.705557f,  0,         -0.990731f, 0,          -1.093067f, 0.909283f, -0.562500f, 1.218750f, 0,
      -0.695940f, 1.104219f, 0,          -0.799121f, 0.928392f,  0,         -1.074308f, 0,         0,
  };
  const std::vector<float> two_of_four = {
      -1.250000f, 0,         1.310159f,  0, 1.119342f,  0,         0.950176f,  0,         0.699643f,
      0,          0,         -0.624370f, 0, -0.727348f, 0.800566f, 0,          1.031399f, 0,
      1.471588f,  0,         -0.989328f, 0, 0,          0.675298f, 0,          1.191567f, 0,
      -0.652456f, 1.148815f, 0,          0, 0.878964f,  0,         -0.971351f, 0.636413f, 0,
  };
  for (const auto& [sparsity, want] : {std::pair(Sparsity{.share = 0.5}, half),
                                       std::pair(Sparsity{.pattern = PrunePattern::two_of_four}, two_of_four)}) {
    const std::vector<float> w = Published().pruned(sparsity);
    for (size_t i = 0; i < w.size(); ++i) {
      EXPECT_EQ(w[i] == 0, want[i] == 0) << i;
      EXPECT_NEAR(w[i], want[i], 1e-5) << i;
    }
  }
}

// Inputs that are mixtures of a few sources: strongly correlated.
struct Layer {
  static constexpr size_t kOut = 40, kIn = 160, kTokens = 300, kSources = 24;
  std::vector<float> weight = std::vector<float>(kOut * kIn), hessian = std::vector<float>(kIn * kIn);
  Layer() {
    const auto random = [](const char* stream, size_t i) { return random_uniform(11, stream_of(stream), i) - 0.5f; };
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = random("w", i);
    for (size_t t = 0; t < kTokens; ++t) {
      std::vector<float> x(kIn);
      for (size_t i = 0; i < kIn; ++i) {
        for (size_t s = 0; s < kSources; ++s)
          x[i] += random("source", t * kSources + s) * random("mix", i * kSources + s);
        x[i] += 0.2f * random("noise", t * kIn + i);
      }
      for (size_t i = 0; i < kIn; ++i)
        for (size_t j = 0; j < kIn; ++j) hessian[i * kIn + j] += x[i] * x[j];
    }
  }
  // Squared error of the layer's outputs on the text.
  double output_error(const std::vector<float>& pruned) const {
    double sum = 0;
    for (size_t r = 0; r < kOut; ++r)
      for (size_t i = 0; i < kIn; ++i)
        for (size_t j = 0; j < kIn; ++j)
          sum += double(weight[r * kIn + i] - pruned[r * kIn + i]) * double(hessian[i * kIn + j]) *
                 double(weight[r * kIn + j] - pruned[r * kIn + j]);
    return sum;
  }
  std::vector<float> pruned(const Sparsity& sparsity, int threads = 1) const {
    ThreadPool pool(threads);
    std::vector<float> w = weight;
    prune_by_sparsegpt({.weight = w, .hessian = hessian, .in = kIn, .what = "w"}, sparsity, pool);
    return w;
  }
};

TEST(SparseGpt, OutputErrorIsBelowWanda) {
  const Layer layer;
  std::vector<float> squares;
  for (size_t i = 0; i < Layer::kIn; ++i) squares.push_back(layer.hessian[i * Layer::kIn + i]);
  for (const Sparsity& sparsity : {Sparsity{}, Sparsity{.pattern = PrunePattern::two_of_four}}) {
    std::vector<float> by_wanda = layer.weight;
    prune_by_wanda(by_wanda, squares, sparsity);
    const std::vector<float> by_sparsegpt = layer.pruned(sparsity);
    EXPECT_EQ(std::ranges::count(by_sparsegpt, 0.0f), std::ranges::count(by_wanda, 0.0f));
    EXPECT_LT(layer.output_error(by_sparsegpt), 0.5 * layer.output_error(by_wanda));
  }
}

TEST(SparseGpt, BitsDoNotDependOnThreads) {
  const Layer layer;
  EXPECT_EQ(layer.pruned({.share = 0.3}), layer.pruned({.share = 0.3}, 3));
}

TEST(SparseGpt, WeightsOfDeadInputsBecomeZero) {
  constexpr size_t kInputs = Published::kIn, kDead = 7;
  Published layer;
  for (size_t i = 0; i < kInputs; ++i) layer.hessian[kDead * kInputs + i] = layer.hessian[i * kInputs + kDead] = 0;
  const std::vector<float> w = layer.pruned({.share = 0.1});
  for (size_t r = 0; r < Published::kOut; ++r) EXPECT_EQ(w[r * kInputs + kDead], 0);
}

}  // namespace
}  // namespace athanor::test
