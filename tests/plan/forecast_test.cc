// The predicted step: its parts sum to it, it is not faster than the bound, and each assumption changes its own part.
#include "plan/forecast.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plan/search.h"

namespace athanor {
namespace {

Config blocks(const std::vector<std::string>& more = {}) {
  std::vector<std::string> set{"model.num_hidden_layers=4", "micro_batch_size=1", "global_batch_size=64",
                               "zero_stage=3"};
  set.insert(set.end(), more.begin(), more.end());
  return load_config("configs/llama-8b.json", set);
}

Cluster h100s(int ranks, const std::vector<std::string>& assume = {}) {
  return ManyRanks{.assume = assume}.cluster(find_gpu("h100"), ranks);
}

bool depends_on(const Forecast& f, const std::string& name) {
  return std::ranges::any_of(f.sensitive, [&](const Sensitivity& s) { return s.of->name == name; });
}

TEST(PlanForecast, IsWithinItsRangeAndAboveTheBound) {
  for (const int ranks : {1, 8, 64}) {
    const Cluster on = h100s(ranks);
    const Forecast f = forecast(RankPlan(blocks(), on));
    EXPECT_DOUBLE_EQ(f.bound, predict(blocks(), on).step());
    EXPECT_GT(f.expected.step(), f.bound);
    EXPECT_LT(f.fastest, f.expected.step());
    EXPECT_GT(f.slowest, f.expected.step());
    ASSERT_FALSE(f.sensitive.empty());
    EXPECT_TRUE(std::ranges::is_sorted(f.sensitive, std::greater{}, &Sensitivity::worse));
    const auto json = nlohmann::json::parse(to_json(blocks(), on, f));
    double sum = 0;
    for (const auto& [part, seconds] : json["parts_seconds"].items()) sum += seconds.get<double>();
    EXPECT_NEAR(sum, json["expected_seconds"].get<double>(), 1e-9 * sum);
    EXPECT_NEAR(json["tokens_per_second"].get<double>() * sum, 64 * 8192, 1);
  }
}

TEST(PlanForecast, DependsOnTheOptionsOfTheRun) {
  const Forecast one = forecast(RankPlan(blocks(), h100s(1))), node = forecast(RankPlan(blocks(), h100s(8))),
                 nodes = forecast(RankPlan(blocks(), h100s(64)));
  EXPECT_STREQ(one.sensitive.front().of->name, "gemms");
  EXPECT_FALSE(depends_on(one, "links") || depends_on(one, "network") || depends_on(one, "quantized"));
  EXPECT_FALSE(depends_on(node, "network"));
  EXPECT_TRUE(depends_on(nodes, "network"));
  EXPECT_TRUE(depends_on(forecast(RankPlan(blocks({"precision=fp8_tensorwise"}), h100s(1))), "quantized"));
}

TEST(PlanForecast, CountsLaunchGapsAndInterference) {
  const RankPlan plan(blocks(), h100s(8));
  const Prediction bound = plan.with({});
  const Prediction apart = plan.with({.launch = 1e-3});
  EXPECT_GT(apart.launching, 1e-3 * 8 * 4 * 10) << "eight micro-batches of four blocks of ten launches and more";
  EXPECT_NEAR(apart.compute, bound.compute + apart.launching, 1e-9);
  const Prediction slowed = plan.with({.interference = 1e-12});
  EXPECT_GT(slowed.slowed, 0);
  EXPECT_LE(slowed.slowed, 1e-12 * bound.traffic.bytes());
  EXPECT_NEAR(slowed.step(), bound.step() + slowed.slowed, 1e-9);
}

TEST(PlanForecast, UsesGivenAssumptions) {
  const RankPlan half(blocks(), h100s(1, {"gemms=0.5", "attention=0.5", "copies=0.5", "launch=0"}));
  EXPECT_NEAR(half.expected().step(), 2 * half.with({}).step(), 0.02 * half.expected().step());
}

TEST(PlanForecast, IsNotBelowTheBoundOfBetterAssumptions) {
  const RankPlan fast(blocks(), h100s(1, {"gemms=1.5", "launch=0"}));
  const Forecast f = forecast(fast);
  EXPECT_LT(f.expected.step(), fast.with({}).step());
  EXPECT_LE(f.bound, f.expected.step());
}

TEST(PlanChanges, MatchPlansOfTheChangedConfiguration) {
  const Config c = blocks({"zero_stage=1"});
  const Cluster on = h100s(8);
  const Prediction before = RankPlan(c, on).expected();
  const auto changes = nlohmann::json::parse(to_json(changes_of(c, on, before), before));
  const auto of = [&](const std::string& name) {
    for (const auto& change : changes)
      if (change["change"] == name) return change;
    ADD_FAILURE() << name << " is missing of " << changes.dump(1);
    return nlohmann::json();
  };
  for (const auto& [name, key] : {std::pair{"zero_stage 2", "zero_stage=2"},
                                  {"micro_batch_size 2", "micro_batch_size=2"},
                                  {"precision fp8_tensorwise", "precision=fp8_tensorwise"}}) {
    const Prediction then = RankPlan(blocks({"zero_stage=1", key}), on).expected();
    EXPECT_DOUBLE_EQ(of(name)["expected_seconds"].get<double>(), then.step()) << name;
    EXPECT_EQ(of(name)["memory_bytes"].get<size_t>(), then.memory) << name;
  }
  EXPECT_LT(of("precision fp8_tensorwise")["step_time"].get<double>(), -0.1);
  EXPECT_GT(of("recompute_granularity full")["step_time"].get<double>(), 0.1);
  EXPECT_EQ(best_of(changes_of(c, on, before), before).find("precision fp8_tensorwise: -"), 0);
  const Config few = blocks({"global_batch_size=8"});
  const Prediction one_sequence = RankPlan(few, on).expected();
  const std::string text = to_text(changes_of(few, on, one_sequence), one_sequence);
  EXPECT_NE(text.find("micro_batch_size 2"), std::string::npos);
  EXPECT_NE(text.find("not possible: "), std::string::npos) << "eight ranks have one sequence each\n" << text;
}

}  // namespace
}  // namespace athanor
