// The fan-out: completes records, survives sinks that throw, raises the alarm; and the z-score behind it.
#include "metrics/sink.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "tests/metrics/capture.h"

namespace athanor {
namespace {

struct Seen {
  std::vector<StepMetrics> steps;
  std::vector<EvalMetrics> evals;
  std::vector<EventRecord> events;
};

class Recorder : public MetricSink {
 public:
  explicit Recorder(Seen& seen) : seen_(seen) {}
  void step(const StepMetrics& m) override { seen_.steps.push_back(m); }
  void eval(const EvalMetrics& m) override { seen_.evals.push_back(m); }
  void event(const EventRecord& e) override { seen_.events.push_back(e); }

 private:
  Seen& seen_;
};

class Thrower : public MetricSink {
 public:
  void step(const StepMetrics&) override { throw Error("boom"); }
  void eval(const EvalMetrics&) override { throw std::bad_alloc(); }
  void event(const EventRecord&) override { throw Error("boom"); }
};

StepMetrics at(int64_t step, double loss) {
  StepMetrics m;
  m.step = step;
  m.loss = loss;
  m.grad_norm = 1;
  return m;
}

TEST(FanOut, CompletesTheRecordForEverySink) {
  Seen a, b;
  MetricFanOut out;
  out.add(std::make_unique<Recorder>(a));
  out.add(std::make_unique<Recorder>(b));
  out.step(at(1, 2));
  out.eval({.step = 1, .loss = 2});
  out.event({.kind = EventKind::signal, .step = 1});
  EXPECT_GT(a.steps.at(0).time, 1.6e9);
  EXPECT_EQ(a.steps[0].time, b.steps.at(0).time) << "one time for all sinks";
  EXPECT_DOUBLE_EQ(a.evals.at(0).perplexity, std::exp(2.0));
  EXPECT_GT(a.events.at(0).time, 1.6e9);
  out.event({.kind = EventKind::signal, .step = 1, .time = 5});
  EXPECT_EQ(a.events.at(1).time, 5) << "a given time is kept";
}

TEST(FanOut, ThrowingSinkIsReportedOnceAndOthersContinue) {
  Seen seen;
  MetricFanOut out;
  out.add(std::make_unique<Thrower>());
  out.add(std::make_unique<Recorder>(seen));
  const std::string log = stderr_of([&] {
    for (int64_t s = 1; s <= 3; ++s) EXPECT_NO_THROW(out.step(at(s, 2)));
    EXPECT_NO_THROW(out.eval({.step = 3}));
  });
  EXPECT_EQ(seen.steps.size(), 3u);
  EXPECT_EQ(count_of(log, "training continues: boom"), 1) << log;
}

TEST(FanOut, LossOutlierRaisesAWarning) {
  Seen seen;
  MetricFanOut out;
  out.add(std::make_unique<Recorder>(seen));
  for (int64_t s = 1; s <= 200; ++s) out.step(at(s, 2 + 0.01 * random_normal(1, 2, uint64_t(s))));
  EXPECT_TRUE(seen.events.empty());
  out.step(at(201, 1.5));
  EXPECT_TRUE(seen.events.empty()) << "a fall is no reason for alarm";
  for (int64_t s = 202; s <= 400; ++s) out.step(at(s, 2 + 0.01 * random_normal(1, 2, uint64_t(s))));
  out.step(at(401, 4));
  ASSERT_EQ(seen.events.size(), 1u);
  EXPECT_EQ(seen.events[0].kind, EventKind::warn);
  EXPECT_EQ(seen.events[0].step, 401);
  EXPECT_NE(seen.events[0].text.find("loss 4 is 11."), std::string::npos) << seen.events[0].text;
  EXPECT_GT(seen.steps.back().loss_z, 6);
}

TEST(FanOut, IsThreadSafe) {
  Seen seen;
  MetricFanOut out;
  out.add(std::make_unique<Recorder>(seen));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 250; ++i) out.event({.kind = EventKind::checkpoint, .step = i});
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(seen.events.size(), 1000u);
}

// ---- z-scores ----

TEST(Outlier, MatchesTheDefinition) {
  Outlier outlier;
  std::vector<double> values;
  for (uint64_t i = 0; i < 1000; ++i) {
    values.push_back(3 + random_normal(7, 1, i));
    const double z = outlier.push(values.back());
    if (i < Outlier::kWindow) {
      EXPECT_TRUE(std::isnan(z)) << "the window fills first";
      continue;
    }
    double mean = 0, square = 0;
    for (size_t k = values.size() - Outlier::kWindow; k < values.size(); ++k) {
      mean += values[k] / double(Outlier::kWindow);
      square += values[k] * values[k] / double(Outlier::kWindow);
    }
    EXPECT_NEAR(z, (values.back() - mean) / std::sqrt(square - mean * mean), 1e-6);
  }
}

TEST(Outlier, EqualValuesScoreZero) {
  Outlier outlier;
  for (size_t i = 0; i < Outlier::kWindow; ++i) outlier.push(0.1);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(outlier.push(0.1), 0);
}

TEST(Outlier, NonFiniteValuesDoNotPoisonTheWindow) {
  Outlier outlier;
  for (size_t i = 0; i < Outlier::kWindow; ++i) outlier.push(double(i % 2));
  EXPECT_TRUE(std::isnan(outlier.push(std::nan(""))));
  EXPECT_TRUE(std::isnan(outlier.push(INFINITY)));
  EXPECT_NEAR(outlier.push(1), 1, 0.05);
}

TEST(Outlier, SpikeScoresTheStatedMaximum) {
  Outlier outlier;
  for (size_t i = 0; i < Outlier::kWindow; ++i) outlier.push(2);
  EXPECT_NEAR(outlier.push(1e9), std::sqrt(double(Outlier::kWindow - 1)), 1e-6);
}

}  // namespace
}  // namespace athanor
