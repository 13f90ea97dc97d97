// Laws of 1-bit Adam: workers that send each other momentum in 1 bit per weight.
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/layout.h"
#include "ops/one_bit.h"
#include "tests/temp_dir.h"
#include "tests/train/ranks_rig.h"

namespace athanor::ranks {
namespace {

Setting one_bit(int workers, int64_t freeze) {
  return {.clip = 0, .rule = RuleName::onebit_adam, .workers = workers, .freeze = freeze};
}

std::vector<float> values(const std::map<std::string, std::vector<std::byte>>& files, const std::string& name) {
  const std::vector<std::byte>& bytes = files.at(name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(OneBitAdam, StepsBeforeTheFreezeAreDataParallelAdamW) {
  Setting whole{.replicas = 2};
  Setting warm = one_bit(2, 100);
  warm.clip = whole.clip;
  expect_same(train(whole, 4), train(warm, 4), 1e-6, "two workers");
}

// Momentum and errors of the workers together are what whole gradients make of them: in a block that worker s serves,
// m' + e'_s + sum over the others of e'_i / K = (b1 m + (1 - b1) mean of g) + e_s + sum over the others of e_i / K.
TEST(OneBitAdam, WhatIsLostInAStepIsAddedInTheNext) {
  const testing::TempDir dir;
  constexpr int kWorkers = 3;
  Setting s = one_bit(kWorkers, 2), exact = s;
  exact.freeze = 100;
  run_part(s, "", 0, 5, dir / "before");
  const std::string folder = cat(dir / "before", "/", step_folder(5));
  run_part(s, folder, 5, 6, dir / "after"), run_part(exact, folder, 5, 6, dir / "exact");
  const auto before = tensors_of(folder), after = tensors_of(cat(dir / "after", "/", step_folder(6))),
             whole = tensors_of(cat(dir / "exact", "/", step_folder(6)));
  for (const std::string weight :
       {"model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"}) {
    const std::vector<float> m = values(after, cat("optimizer m.", weight)),
                             want = values(whole, cat("optimizer m.", weight));
    std::vector<std::vector<float>> old_errors, errors;
    for (int w = 0; w < kWorkers; ++w) {
      const std::string name = cat("optimizer worker", w, ".compression_error.", weight);
      old_errors.push_back(values(before, name)), errors.push_back(values(after, name));
    }
    double most = 0, most_moved = 0;
    for (size_t i = 0; i < m.size(); ++i) {
      double least = 1e9;
      for (int server = 0; server < kWorkers; ++server) {
        double has = m[i], had = want[i];
        for (int w = 0; w < kWorkers; ++w) {
          const double share = w == server ? 1 : 1.0 / kWorkers;
          has += share * errors[size_t(w)][i], had += share * old_errors[size_t(w)][i];
        }
        least = std::min(least, std::abs(has - had));
      }
      most = std::max(most, least),
      most_moved = std::max(most_moved, double(std::abs(errors[0][i] - old_errors[0][i])));
      if (weight == "model.embed_tokens.weight") {  // which begins with a block
        EXPECT_EQ(std::abs(m[i]), std::abs(m[i / size_t(kOneBitBlock) * size_t(kOneBitBlock)])) << i;
      }
    }
    EXPECT_LT(most, 1e-6) << weight;
    EXPECT_GT(most_moved, 1e-5) << weight;
  }
}

TEST(OneBitAdam, ItLearnsNearlyAsWholeGradientsDo) {
  Setting warm = one_bit(4, 1000), compressed = one_bit(4, 10);
  const Curve want = train(warm, 40), got = train(compressed, 40);
  EXPECT_LT(got.losses.back() - want.losses.back(), 0.1 * (want.losses[10] - want.losses.back()));
  EXPECT_NE(got.losses.back(), want.losses.back());
}

TEST(OneBitAdam, RanksOfAWorkerAreFree) {
  Setting s = one_bit(2, 2);
  s.length = 8;
  const Curve want = train(s, 5);
  for (int stage = 0; stage <= 3; ++stage) {
    Setting sharded = s;
    sharded.stage = stage;
    (stage == 0 ? sharded.replicas : sharded.shards) = 2;
    expect_same(want, train(sharded, 5), 1e-5, sharded.name());
  }
  Setting accumulated = s;
  accumulated.replicas = 2, accumulated.accumulation = 4;
  expect_same(want, train(accumulated, 5), 1e-5, accumulated.name());
  Setting context = s;
  context.context = 2;
  expect_same(want, train(context, 5), 1e-5, context.name());
}

TEST(OneBitAdam, ARunGoesOnToTheBitBeforeAndAfterTheFreeze) {
  std::vector<Setting> settings = {one_bit(2, 3), one_bit(1, 3)};
  settings[0].precision = "bf16", settings[0].master = DType::i16, settings[0].shards = 2, settings[0].stage = 2;
  settings[1].ema = 0.9, settings[1].frozen = {"embed_tokens"};
  for (const Setting& s : settings) expect_exact_resume(s, {2, 5}, 6);
}

TEST(OneBitAdam, AnotherNumberOfWorkersIsRefused) {
  const testing::TempDir dir;
  run_part(one_bit(2, 1), "", 0, 2, dir / "first");
  try {
    run_part(one_bit(3, 1), cat(dir / "first", "/", step_folder(2)), 2, 3, dir / "other");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("2 workers"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace athanor::ranks
