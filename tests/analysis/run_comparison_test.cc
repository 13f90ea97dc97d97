// Comparison of two runs: loss gaps, quantization statistics, and alarms beyond the limits.
#include "analysis/run_comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace athanor {
namespace {

RunRecords run_of(const char* precision, int64_t steps, double factor) {
  RunRecords run;
  run.name = run.config.emplace_back("precision", precision).second;
  for (int64_t s = 1; s <= steps; ++s) {
    StepMetrics m;
    m.step = s;
    m.loss = factor * (2 + 1 / double(s));
    run.steps.push_back(m);
  }
  run.evals = {{.step = steps / 2, .loss = 3 * factor},
               {.step = steps, .loss = 2.5 * factor},
               {.step = steps, .name = "choices", .loss = 9}};
  return run;
}

QuantizedMetrics counted(int64_t step, const char* layer, const char* operand, int64_t saturated, int64_t underflowed) {
  return {.step = step,
          .layer = layer,
          .operand = operand,
          .dtype = "f8_e4m3",
          .values = 1000,
          .saturated = saturated,
          .underflowed = underflowed,
          .amax = double(step)};
}

TEST(RunComparison, FindsLossGaps) {
  RunRecords run = run_of("mxfp8", 120, 1.004), reference = run_of("bf16", 100, 1);
  run.steps.erase(run.steps.begin());
  run.steps[60].loss *= 3;  // step 62: outlives kComparisonSmoothing steps, not more
  const RunComparison report = compare_runs(run, reference, {});
  EXPECT_EQ(report.precision, "mxfp8");
  EXPECT_EQ(report.reference, "bf16");
  ASSERT_EQ(report.steps.size(), 99u);
  EXPECT_EQ(report.steps.front().step, 2);
  EXPECT_EQ(report.steps.back().step, 100);
  EXPECT_NEAR(report.steps[59].gap, 0.004, 1e-12);
  EXPECT_GT(report.steps[60].gap, 0.03);
  EXPECT_GT(report.steps.back().gap, 0.03);
  EXPECT_EQ(report.valid_step, -1) << "evaluations at other steps";
  ASSERT_EQ(report.alarms.size(), 1u);
  EXPECT_NE(report.alarms[0].find("smoothed training loss to bf16: +4.4"), std::string::npos) << report.alarms[0];
  run.steps[60].loss /= 3;
  run.evals.back().name = "valid", run.evals.back().step = 100, run.evals.back().loss = 2.5 * 1.2;
  const RunComparison other = compare_runs(run, reference, {});
  EXPECT_EQ(other.valid_step, 100);
  EXPECT_NEAR(other.valid_gap, 0.2, 1e-12);
  ASSERT_EQ(other.alarms.size(), 1u);
  EXPECT_NE(other.alarms[0].find("held-out loss to bf16: +20.000%, above +1.000%"), std::string::npos);
  run.evals.clear();
  EXPECT_TRUE(compare_runs(run, reference, {}).alarms.empty());
  run.steps[98].loss = NAN;  // step 100
  EXPECT_EQ(compare_runs(run, reference, {}).alarms.size(), 1u);
  EXPECT_THROW(compare_runs(run, RunRecords{}, {}), Error);
}

TEST(RunComparison, ReportsTheWorstRecordPerMatrix) {
  RunRecords run = run_of("fp8_tensorwise", 60, 1);
  run.quantized = {counted(10, "h.0", "forward_x", 0, 100), counted(10, "h.0", "input_dy", 0, 5),
                   counted(10, "h.1", "forward_x", 2, 0), counted(20, "h.0", "forward_x", 0, 700),
                   counted(20, "h.1", "forward_x", 0, 0)};
  const std::vector<QuantizedCourse> courses = quantized_courses(run);
  ASSERT_EQ(courses.size(), 3u);
  EXPECT_EQ(courses[0].values, 2000);
  EXPECT_EQ(courses[0].underflowed_share(), 0.4);
  EXPECT_EQ(courses[0].worst_underflowed, 0.7);
  EXPECT_EQ(courses[0].amax, 20);
  const std::vector<QuantizedCourse> sums = by_operand(courses);
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_EQ(sums[0].operand, "forward_x");
  EXPECT_EQ(sums[0].layer, "h.0");
  EXPECT_EQ(sums[0].values, 4000);
  const RunComparison report =
      compare_runs(run, run_of("bf16", 60, 1), {.gap = 0.01, .saturated = 0.001, .underflowed = 0.5});
  ASSERT_EQ(report.alarms.size(), 2u);
  EXPECT_EQ(report.alarms[0], "h.0 forward_x (f8_e4m3): up to 70.0% of the values underflow to zero, above 50.0%");
  EXPECT_EQ(report.alarms[1], "h.1 forward_x (f8_e4m3): up to 0.2% of the values saturate, above 0.1%");
  EXPECT_TRUE(compare_runs(run, run_of("bf16", 60, 1), {.saturated = 0.01, .underflowed = 0.8}).alarms.empty());
  run.quantized.back().amax = INFINITY;
  EXPECT_EQ(compare_runs(run, run_of("bf16", 60, 1), {.saturated = 1, .underflowed = 1}).alarms.at(0),
            "h.1 forward_x (f8_e4m3): held Inf or NaN");
}

TEST(RunComparison, WritesJsonAndASummary) {
  RunRecords run = run_of("fp8_tensorwise", 60, 1.001);
  run.quantized = {counted(60, "h.0<b>", "forward_x", 0, 100)};
  const RunComparison report = compare_runs(run, run_of("bf16", 60, 1), {});
  const auto json = nlohmann::json::parse(comparison_json(report));
  EXPECT_EQ(json["steps"].size(), 60u);
  EXPECT_NEAR(json["steps"][59]["gap"].get<double>(), 0.001, 1e-9);
  EXPECT_NEAR(json["valid"]["gap"].get<double>(), 0.001, 1e-9);
  EXPECT_EQ(json["operands"][0]["underflowed"], 0.1);
  EXPECT_EQ(json["operands"][0]["course"][0]["amax"], 60);
  EXPECT_TRUE(json["alarms"].empty());
  const std::string text = comparison_summary(report);
  for (const char* part : {"held out, step 60", "+0.100%", "forward_x", "10.0000%"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

}  // namespace
}  // namespace athanor
