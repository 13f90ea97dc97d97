// The simulation of a cluster against closed formulas and published figures.
#include "perf/cluster.h"

#include <gtest/gtest.h>

#include <cmath>

namespace athanor {
namespace {

// [Llama Team 2024, "The Llama 3 Herd of Models", section 3.3.4]: 419 unexpected interruptions in 54 days.
ClusterRun llama3() {
  ClusterRun run{.gpus = 16384, .days = 54, .save_every = 334, .save_stall = 5, .detection = 120, .restart = 480};
  run.mtbf_hours = 16384.0 * 54 * 24 / 419;
  return run;
}

TEST(Cluster, TimesSumToTheTotal) {
  ClusterRun run = llama3();
  for (const int64_t spares : {-1, 0, 4, 12})
    for (uint64_t seed = 0; seed < 5; ++seed) {
      run.spares = spares, run.save_write = 200;
      const ClusterTimes t = simulate(run, seed);
      EXPECT_NEAR(t.all(), 54 * 86400.0, 1e-3) << spares << " " << seed;
      EXPECT_EQ(t.training, simulate(run, seed).training) << "the seed says it all";
      EXPECT_NE(t.training, simulate(run, seed + 100).training);
    }
}

TEST(Cluster, WithoutFailuresOnlySavesTakeTime) {
  const ClusterRun run{.gpus = 8, .days = 10, .mtbf_hours = 1e12, .save_every = 900, .save_stall = 100};
  const ClusterTimes t = simulate(run, 1);
  EXPECT_EQ(t.failures, 0);
  EXPECT_NEAR(t.effective(), 0.9, 1e-9);
}

// Daly's expected effective fraction [2006, eq. 20], with enough spares and saves that are durable at once.
double daly_effective(const ClusterRun& run) {
  const double mean = 1 / run.failures_per_second(), down = run.detection + run.restart;
  return run.save_every / (mean * std::exp(down / mean) * std::expm1((run.save_every + run.save_stall) / mean));
}

TEST(Cluster, MeanMatchesDalysFormula) {
  for (const double every : {100.0, 1000.0, 4000.0}) {
    ClusterRun run = llama3();
    run.save_every = every, run.save_stall = 60, run.days = 200;
    EXPECT_NEAR(simulate_many(run, 16).times.effective(), daly_effective(run), 0.004) << every;
  }
}

// A checkpoint that is still being written at a failure does not count: the steps since the previous one are lost.
TEST(Cluster, SaveCountsOnceItIsDurable) {
  ClusterRun run = llama3();
  const ClusterTimes at_once = simulate_many(run, 8).times;
  run.save_write = 300;
  const ClusterTimes later = simulate_many(run, 8).times;
  EXPECT_EQ(at_once.failures, later.failures) << "the same failures";
  EXPECT_NEAR(later.lost - at_once.lost, 295 * later.failures, 0.1 * later.lost);
}

TEST(Cluster, BestIntervalIsNearTheory) {
  ClusterRun run = llama3();
  run.save_stall = 60;
  const double best = best_interval(run, 16);
  EXPECT_NEAR(best, daly_interval(run), 0.35 * daly_interval(run)) << "the optimum is flat";
  ClusterRun at = run, theory = run;
  at.save_every = best, theory.save_every = daly_interval(run);
  EXPECT_NEAR(simulate_many(at, 16).times.effective(), simulate_many(theory, 16).times.effective(), 0.002);
  EXPECT_NEAR(young_interval(run), std::sqrt(2 * 60 * 54 * 86400.0 / 419), 1e-6);
}

// As many nodes are under repair as a Poisson process with this mean says: 419 failures in 54 days, each for a day.
TEST(Cluster, SparesCoverNodesUnderRepair) {
  ClusterRun run = llama3();
  const double mean = 419.0 / 54;
  const int64_t needed = spares_needed(run, 8, 0.001);
  EXPECT_GT(needed, int64_t(mean));
  EXPECT_LT(needed, int64_t(mean + 5 * std::sqrt(mean)));
  run.spares = 0;
  EXPECT_GT(simulate(run, 1).waiting, 0.5 * 54 * 86400) << "without spares every failure waits for a repair";
  run.repair_share = 0;
  EXPECT_EQ(simulate(run, 1).waiting, 0);
}

// 419 interruptions and more than 90 % effective time, as published; the restart time is assumed.
TEST(Cluster, ReproducesPublishedFiguresOfLlama3) {
  const ClusterMean mean = simulate_many(llama3(), 32);
  EXPECT_NEAR(mean.times.failures, 419, 0.03 * 419);
  EXPECT_GT(mean.times.effective(), 0.90);
  EXPECT_LT(mean.times.effective(), 0.95);
}

}  // namespace
}  // namespace athanor
