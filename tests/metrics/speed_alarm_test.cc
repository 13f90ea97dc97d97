// Alarms of speed: their limits, that noise is none, and that each is given once until its cause has passed.
#include "metrics/speed_alarm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "metrics/sink.h"

namespace athanor {
namespace {

StepMetrics timed(double step_ms, double data_ms) {
  StepMetrics m;
  m.step_ms = step_ms;
  m.data_ms = data_ms;
  m.tokens_per_second = 1000 / (step_ms * 1e-3);  // 1000 tokens a step
  m.loss = m.grad_norm = 1;
  return m;
}

// All alarms of `steps` equal steps.
std::vector<std::string> run(SpeedAlarm& alarm, int steps, double step_ms, double data_ms = 0) {
  std::vector<std::string> all;
  for (int i = 0; i < steps; ++i)
    for (std::string& text : alarm.push(timed(step_ms, data_ms))) all.push_back(std::move(text));
  return all;
}

TEST(SpeedAlarm, DataWaitIsJudgedOverAWindow) {
  SpeedAlarm alarm;
  EXPECT_TRUE(run(alarm, 31, 100, 50).empty()) << "no full window yet";
  const auto first = run(alarm, 1, 100, 50);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_NE(first[0].find("waiting for data takes 50.0%"), std::string::npos) << first[0];
  EXPECT_TRUE(run(alarm, 2500, 100, 50).empty()) << "once";
  EXPECT_TRUE(run(alarm, 2500, 100, 1.5).empty()) << "still above half of the limit: not over";
  EXPECT_TRUE(run(alarm, 32, 100, 5).empty());
  EXPECT_TRUE(run(alarm, 32, 100, 0.5).empty());
  EXPECT_EQ(run(alarm, 32, 100, 5).size(), 1u) << "over, and back";
}

TEST(SpeedAlarm, LimitsMatchTheDocumentation) {
  SpeedAlarm just_below, just_above;
  EXPECT_TRUE(run(just_below, 200, 100, 1.99).empty());
  EXPECT_EQ(run(just_above, 200, 100, 2.01).size(), 1u);
  SpeedAlarm slower, slow;
  run(slower, 40, 100), run(slow, 40, 100);
  EXPECT_TRUE(run(slower, 100, 124).empty());  // 19.4 % fewer tokens per second
  EXPECT_EQ(run(slow, 100, 126).size(), 1u);   // 20.6 %
}

TEST(SpeedAlarm, OneSlowStepRaisesNoAlarm) {
  SpeedAlarm alarm;
  run(alarm, 100, 100);
  EXPECT_TRUE(run(alarm, 1, 700).empty());
  EXPECT_TRUE(run(alarm, 100, 100).empty());
}

TEST(SpeedAlarm, IsRaisedAgainAfterRecovery) {
  SpeedAlarm alarm;
  run(alarm, 40, 100);
  const auto drop = run(alarm, 40, 200);
  ASSERT_EQ(drop.size(), 1u);
  EXPECT_NE(drop[0].find("less than the best 32 since the start"), std::string::npos) << drop[0];
  EXPECT_TRUE(run(alarm, 200, 200).empty());
  EXPECT_TRUE(run(alarm, 4000, 100).empty());
  EXPECT_EQ(run(alarm, 40, 200).size(), 1u);
}

// Other load starts and stops every hundred steps; a slowdown that persists when the next alarm is allowed is reported.
TEST(SpeedAlarm, IsRaisedLessThanOncePerThousandSteps) {
  SpeedAlarm alarm;
  size_t given = 0;
  for (int steps = 0; steps < 20'000; steps += 200)
    given += run(alarm, 100, 100, 1).size() + run(alarm, 100, 200, 20).size();
  EXPECT_GE(given, 2u);
  EXPECT_LE(given, 20u);
  SpeedAlarm later;
  run(later, 40, 100), run(later, 40, 200), run(later, 40, 100);
  EXPECT_EQ(run(later, 4000, 200).size(), 1u);
}

TEST(SpeedAlarm, IgnoresRecordsWithoutTimes) {
  SpeedAlarm alarm;
  EXPECT_TRUE(run(alarm, 100, 0).empty());
  EXPECT_TRUE(run(alarm, 100, std::nan("")).empty());
}

// The alarms reach the sinks as events of the step.
TEST(SpeedAlarm, BecomesAWarnEvent) {
  struct Sink : MetricSink {
    explicit Sink(std::vector<EventRecord>& to) : events(to) {}
    void step(const StepMetrics&) override {}
    void eval(const EvalMetrics&) override {}
    void event(const EventRecord& e) override { events.push_back(e); }
    std::vector<EventRecord>& events;
  };
  std::vector<EventRecord> events;
  MetricFanOut out;
  out.add(std::make_unique<Sink>(events));
  for (int step = 1; step <= 40; ++step) {
    StepMetrics m = timed(100, 30);
    m.step = step;
    out.step(m);
  }
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, EventKind::warn);
  EXPECT_EQ(events[0].step, 32);
}

}  // namespace
}  // namespace athanor
