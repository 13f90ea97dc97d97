// The phases of a step account for all of its time, in the clock and in the printed table.
#include "engine/step_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"

namespace athanor {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// A clock that the test advances.
PhaseClock::Clock::time_point fake_now{};
void pass(nanoseconds time) { fake_now += time; }
PhaseClock fake_clock() {
  return PhaseClock([] { return fake_now; });
}

TEST(PhaseClock, EveryInstantBelongsToOnePhase) {
  PhaseClock clock = fake_clock();
  pass(nanoseconds(1));  // other
  clock.enter(Phase::data);
  pass(milliseconds(2));
  clock.enter(Phase::forward);
  pass(milliseconds(30));
  clock.enter(Phase::backward);
  pass(milliseconds(60));
  clock.enter(Phase::forward);  // a second micro-batch
  pass(milliseconds(31));
  clock.enter(Phase::other);
  const PhaseTimes times = clock.lap();
  EXPECT_EQ(times[Phase::data], 2'000'000);
  EXPECT_EQ(times[Phase::forward], 61'000'000);
  EXPECT_EQ(times[Phase::backward], 60'000'000);
  EXPECT_EQ(times[Phase::other], 1);
  EXPECT_EQ(times.total(), 123'000'001) << "the sum is the elapsed time to the nanosecond";
}

TEST(PhaseClock, LapsHaveNoGapAndKeepThePhase) {
  PhaseClock clock = fake_clock();
  clock.enter(Phase::data);
  pass(milliseconds(5));
  EXPECT_EQ(clock.lap()[Phase::data], 5'000'000);
  pass(milliseconds(7));
  EXPECT_EQ(clock.lap()[Phase::data], 7'000'000);
  EXPECT_EQ(clock.lap().total(), 0);
}

TEST(PhaseClock, ScopeRestoresThePreviousPhase) {
  PhaseClock clock = fake_clock();
  clock.enter(Phase::forward);
  {
    const PhaseScope scope(clock, Phase::data);
    pass(milliseconds(1));
  }
  pass(milliseconds(2));
  const auto times = clock.lap();
  EXPECT_EQ(times[Phase::data], 1'000'000);
  EXPECT_EQ(times[Phase::forward], 2'000'000);
}

TEST(PhaseClock, MeasuresRealTime) {
  PhaseClock clock;
  const auto before = PhaseClock::Clock::now();
  while (PhaseClock::Clock::now() - before < milliseconds(2)) {
  }
  EXPECT_GE(clock.lap().total(), 2'000'000);
}

// The figures of the printed table, in units of the last digit.
struct Printed {
  std::vector<int64_t> ms, percent;  // the last one is the total's
};

Printed figures(const std::string& report) {
  Printed printed;
  std::istringstream in(report);
  std::string line;
  std::getline(in, line);
  std::getline(in, line);
  for (std::string name; in >> name;) {
    double ms = 0, percent = 0;
    in >> ms >> percent;
    printed.ms.push_back(std::llround(ms * 100));
    printed.percent.push_back(std::llround(percent * 10));
  }
  return printed;
}

TEST(StepTable, PrintedFiguresSumToThePrintedTotalExactly) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    StepTable table;
    const int64_t steps = 1 + random_bits(seed, 1, 0) % 97;
    PhaseTimes times;
    for (size_t i = 0; i < kPhases; ++i)
      times.ns[i] = int64_t(random_bits(seed, 2, i)) >> (random_bits(seed, 3, i) % 32);
    table.add(times, steps);
    const Printed p = figures(table.report());
    ASSERT_EQ(p.ms.size(), kPhases + 1) << table.report();
    int64_t ms = 0, percent = 0;
    for (size_t i = 0; i < kPhases; ++i) {
      ms += p.ms[i];
      percent += p.percent[i];
      EXPECT_NEAR(double(p.ms[i]), double(times.ns[i]) / double(steps) * 1e-4, 1.5) << "seed " << seed;
    }
    EXPECT_EQ(ms, p.ms.back()) << "seed " << seed << "\n" << table.report();
    EXPECT_EQ(percent, 1000) << "seed " << seed << "\n" << table.report();
  }
}

TEST(StepTable, TimeBetweenStepsIsSpreadOverSteps) {
  StepTable table;
  PhaseTimes step, between;
  step[Phase::forward] = 10'000'000;
  between[Phase::checkpoint] = 20'000'000;
  for (int i = 0; i < 4; ++i) table.add(step);
  table.add(between, 0);
  EXPECT_EQ(table.steps(), 4);
  EXPECT_EQ(table.report(),
            "Time per step over 4 steps (60.0ms)\n"
            "phase             ms/step        %\n"
            "data                 0.00      0.0\n"
            "forward             10.00     66.7\n"
            "backward             0.00      0.0\n"
            "communication        0.00      0.0\n"
            "optimizer            0.00      0.0\n"
            "checkpoint           5.00     33.3\n"
            "eval                 0.00      0.0\n"
            "other                0.00      0.0\n"
            "step                15.00    100.0\n");
}

TEST(StepTable, ReportIsEmptyWithoutSteps) {
  StepTable table;
  EXPECT_EQ(table.report(), "");
  table.add({}, 1);
  EXPECT_NE(table.report().find("step                 0.00      0.0\n"), std::string::npos) << "no time passed";
}

TEST(StepTable, DocumentationListsThePhases) {
  std::string phases;
  for (size_t i = 0; i < kPhases; ++i) phases += cat(i > 0 ? ", " : "", "`", to_string(Phase(i)), "`");
  std::string doc = read_file("configs/LOGS.md", 1 << 20);
  std::replace(doc.begin(), doc.end(), '\n', ' ');
  EXPECT_NE(doc.find(phases), std::string::npos) << phases;
}

}  // namespace
}  // namespace athanor
