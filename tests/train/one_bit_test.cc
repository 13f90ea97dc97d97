// Laws of 1-bit Adam and 1-bit LAMB: workers exchange momentum with 1 bit per weight.
#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/layout.h"
#include "ops/one_bit.h"
#include "tests/temp_dir.h"
#include "tests/train/ranks_rig.h"

namespace athanor::ranks {
namespace {

Setting one_bit(int workers, int64_t freeze, RuleName rule = RuleName::onebit_adam) {
  return {.clip = 0, .rule = rule, .workers = workers, .freeze = freeze};
}
constexpr RuleName kOneBitRules[] = {RuleName::onebit_adam, RuleName::onebit_lamb};

std::vector<float> floats(const std::map<std::string, std::vector<std::byte>>& files, const std::string& name) {
  const std::vector<std::byte>& bytes = files.at(name);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST(OneBit, StepsBeforeTheFreezeMatchDataParallelism) {
  for (const RuleName rule : kOneBitRules) {
    Setting whole{.replicas = 2, .rule = rule == RuleName::onebit_lamb ? RuleName::lamb : RuleName::adamw};
    Setting warm = one_bit(2, 100, rule);
    warm.clip = whole.clip;
    expect_same(train(whole, 4), train(warm, 4), 1e-6, kRuleNames[size_t(rule)]);
  }
}

// Momentum plus the workers' errors must equal the uncompressed momentum: in a block that worker s serves, m' + e'_s +
// sum over the others of e'_i / K = (b1 m + (1 - b1) mean of g) + e_s + sum over the others of e_i / K.
TEST(OneBit, CompressionErrorIsFedBackInTheNextStep) {
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
    const std::vector<float> m = floats(after, cat("optimizer m.", weight)),
                             want = floats(whole, cat("optimizer m.", weight));
    std::vector<std::vector<float>> old_errors, errors;
    for (int w = 0; w < kWorkers; ++w) {
      const std::string name = cat("optimizer worker", w, ".compression_error.", weight);
      old_errors.push_back(floats(before, name)), errors.push_back(floats(after, name));
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
      if (weight == "model.embed_tokens.weight") {  // this tensor begins at a block boundary
        EXPECT_EQ(std::abs(m[i]), std::abs(m[i / size_t(kOneBitBlock) * size_t(kOneBitBlock)])) << i;
      }
    }
    EXPECT_LT(most, 1e-6) << weight;
    EXPECT_GT(most_moved, 1e-5) << weight;
  }
}

TEST(OneBit, LossStaysNearFullGradients) {
  for (const RuleName rule : kOneBitRules) {
    Setting warm = one_bit(4, 1000, rule), compressed = one_bit(4, 10, rule);
    if (rule == RuleName::onebit_lamb) warm.lr = compressed.lr = 0.05;
    const Curve want = train(warm, 40), got = train(compressed, 40);
    EXPECT_LT(got.losses.back() - want.losses.back(), 0.1 * (want.losses[10] - want.losses.back()))
        << kRuleNames[size_t(rule)];
    EXPECT_NE(got.losses.back(), want.losses.back()) << kRuleNames[size_t(rule)];
  }
}

// After the freeze, the average of a matrix's trust ratios is kept, and its factor changes by at most 10 % per step,
// following the variance implied by the momenta. The matrix's step has the corresponding length.
TEST(OneBitLamb, TrustRatioIsTheFrozenAverageTimesAFactor) {
  const testing::TempDir dir;
  Setting s = one_bit(2, 4, RuleName::onebit_lamb);
  run_part(s, "", 0, 4, dir / "warm");
  const std::string frozen = cat(dir / "warm", "/", step_folder(4));
  run_part(s, frozen, 4, 5, dir / "one"), run_part(s, frozen, 4, 8, dir / "four");
  const auto before = tensors_of(frozen), one = tensors_of(cat(dir / "one", "/", step_folder(5))),
             four = tensors_of(cat(dir / "four", "/", step_folder(8)));
  bool any_moved = false;
  for (const std::string weight : {"model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight"}) {
    const std::string trust = cat("optimizer trust_ratio.", weight), v = cat("optimizer v.", weight);
    const std::vector<float> had = floats(before, trust), has = floats(one, trust), last = floats(four, trust);
    EXPECT_GT(had[0], 0) << weight;
    EXPECT_EQ(had[1], 0) << weight;
    EXPECT_EQ(had[0], last[0]) << weight;
    EXPECT_NEAR(has[1], 1, 0.1001) << weight;
    EXPECT_LE(std::abs(std::log(last[1])), 4 * std::log(1.1001)) << weight;
    any_moved = any_moved || last[1] != has[1];
    EXPECT_EQ(floats(before, v), floats(four, v)) << weight;
    EXPECT_NE(floats(four, cat("optimizer v_fresh.", weight)), floats(four, v)) << weight;

    const std::vector<float> w = floats(before, cat("model ", weight)), moved = floats(one, cat("model ", weight)),
                             m = floats(one, cat("optimizer m.", weight)), variance = floats(one, v);
    double step = 0, direction = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      step += std::pow(double(moved[i]) - double(w[i]), 2);
      const double root = std::sqrt(double(variance[i]) / (1 - std::pow(0.95, 4)));
      const double u = variance[i] != 0 ? double(m[i]) / (1 - std::pow(0.9, 5)) / (root + s.eps) : 0;
      direction += std::pow(u + OptimizerOptions{}.weight_decay * double(w[i]), 2);
    }
    EXPECT_NEAR(std::sqrt(step / direction) / s.lr, double(has[0]) * double(has[1]), 1e-3 * double(has[0])) << weight;
  }
  EXPECT_TRUE(any_moved);
}

TEST(OneBit, AnyMeshWithinAWorkerMatches) {
  Setting s = one_bit(2, 2);
  s.length = 8;
  const Curve want = train(s, 5);
  for (int stage = 0; stage <= 3; ++stage) {
    Setting sharded = s;
    sharded.stage = stage;
    (stage == 0 ? sharded.replicas : sharded.shards) = 2;
    expect_same(want, train(sharded, 5), 1e-5, sharded.name());
  }
  Setting lamb = s;
  lamb.rule = RuleName::onebit_lamb;
  const Curve want_of_lamb = train(lamb, 5);
  lamb.stage = 3, lamb.shards = 2;
  expect_same(want_of_lamb, train(lamb, 5), 1e-5, lamb.name());
  Setting accumulated = s;
  accumulated.replicas = 2, accumulated.accumulation = 4;
  expect_same(want, train(accumulated, 5), 1e-5, accumulated.name());
  Setting context = s;
  context.context = 2;
  expect_same(want, train(context, 5), 1e-5, context.name());
}

TEST(OneBit, ResumesBitExactlyBeforeAndAfterTheFreeze) {
  std::vector<Setting> settings = {one_bit(2, 3), one_bit(1, 3), one_bit(2, 3, RuleName::onebit_lamb)};
  settings[0].precision = "bf16", settings[0].master = DType::i16, settings[0].shards = 2, settings[0].stage = 2;
  settings[1].ema = 0.9, settings[1].frozen = {"embed_tokens"};
  settings[2].precision = "bf16", settings[2].master = DType::i16, settings[2].shards = 2, settings[2].stage = 3;
  for (const Setting& s : settings) expect_exact_resume(s, {2, 5}, 6);
}

TEST(OneBit, ResumeRefusesAnotherNumberOfWorkers) {
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
