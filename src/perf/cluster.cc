#include "perf/cluster.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/rng.h"

namespace athanor {
namespace {

// Returns a uniform random number in (0, 1) with 32 bits.
double uniform(uint64_t seed, std::string_view stream, uint64_t index) {
  return (double(random_bits(seed, stream_of(stream), index)) + 0.5) * 0x1p-32;
}

// Result of `seconds` seconds without a failure.
struct Stretch {
  double trained = 0, durable = 0, stalled = 0;
};
Stretch stretch(const ClusterRun& run, double seconds) {
  const double cycle = run.save_every + run.save_stall, write = std::max(run.save_write, run.save_stall);
  const double cycles = std::floor(seconds / cycle);
  Stretch s;
  s.trained = cycles * run.save_every + std::min(seconds - cycles * cycle, run.save_every);
  // Save number j begins after j * save_every + (j - 1) * save_stall.
  s.durable = std::max(0.0, std::floor((seconds + run.save_stall - write) / cycle)) * run.save_every;
  s.stalled = seconds - s.trained;
  return s;
}

// Nodes under repair; the node that failed first returns first.
class Repairs {
 public:
  explicit Repairs(const ClusterRun& run) : run_(run) {}
  void fail(double now) { back_.push_back(now + run_.repair_hours * 3600); }
  // Returns the earliest time, not before `now`, at which enough nodes are available.
  double complete_from(double now) {
    while (!back_.empty() && back_.front() <= now) back_.pop_front();
    const auto lacking = int64_t(back_.size()) - run_.spares;
    if (run_.spares < 0 || lacking <= 0) return now;
    return back_[size_t(lacking - 1)];
  }

 private:
  const ClusterRun& run_;
  std::deque<double> back_;
};

class Failures {
 public:
  Failures(const ClusterRun& run, uint64_t seed) : rate_(run.failures_per_second()), seed_(seed) { next(); }
  double at() const { return at_; }
  uint64_t number() const { return count_; }
  void next() { at_ += -std::log(uniform(seed_, "failures of a cluster", count_++)) / rate_; }

 private:
  double rate_;
  uint64_t seed_, count_ = 0;
  double at_ = 0;
};

}  // namespace

ClusterTimes simulate(const ClusterRun& run, uint64_t seed) {
  const double end = run.days * 86400, down = run.detection + run.restart;
  ClusterTimes times;
  Failures failures(run, seed);
  Repairs repairs(run);
  double up = 0;  // start of the current stretch of training
  while (true) {
    const double until = std::min(failures.at(), end);
    const Stretch s = stretch(run, until - up);
    times.saving += s.stalled;
    if (failures.at() >= end) {
      times.training += s.trained;
      return times;
    }
    times.training += s.durable, times.lost += s.trained - s.durable;
    // A failure during a restart begins a new restart.
    double now = until;
    while (true) {
      ++times.failures;
      if (uniform(seed, "failures that need a repair", failures.number()) < run.repair_share) repairs.fail(now);
      failures.next();
      const double complete = std::min(end, repairs.complete_from(now));
      times.waiting += complete - now;
      while (failures.at() < complete) failures.next();  // a cluster that waits has no failures
      up = std::min(end, complete + down);
      const double stopped = std::min(up, failures.at());
      times.restarting += stopped - complete;
      if (up == end && failures.at() >= end) return times;
      if (failures.at() >= up) break;
      now = stopped;
    }
  }
}

ClusterMean simulate_many(const ClusterRun& run, int count) {
  ClusterMean mean;
  ClusterTimes& sum = mean.times;
  double square = 0, effective = 0;
  for (int i = 0; i < count; ++i) {
    const ClusterTimes t = simulate(run, uint64_t(i));
    sum.training += t.training / count, sum.saving += t.saving / count, sum.lost += t.lost / count;
    sum.restarting += t.restarting / count, sum.waiting += t.waiting / count, sum.failures += t.failures / count;
    effective += t.effective() / count, square += t.effective() * t.effective() / count;
  }
  mean.deviation = std::sqrt(std::max(0.0, square - effective * effective));
  return mean;
}

double young_interval(const ClusterRun& run) { return std::sqrt(2 * run.save_stall / run.failures_per_second()); }

double daly_interval(const ClusterRun& run) {
  const double mean = 1 / run.failures_per_second(), stall = run.save_stall;
  if (stall >= 2 * mean) return mean;
  const double ratio = stall / (2 * mean);
  return std::sqrt(2 * stall * mean) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - stall;
}

double best_interval(const ClusterRun& run, int count) {
  constexpr int kSteps = 48;
  constexpr double kWidth = 8;  // search from 1/8 to 8 times the theoretical interval
  const double middle = std::max(daly_interval(run), 1.0);
  double best = middle, most = -1;
  for (int i = 0; i <= kSteps; ++i) {
    ClusterRun tried = run;
    tried.save_every = middle * std::pow(kWidth, 2.0 * i / kSteps - 1);
    const double effective = simulate_many(tried, count).times.effective();
    if (effective > most) most = effective, best = tried.save_every;
  }
  return best;
}

int64_t spares_needed(const ClusterRun& run, int count, double share) {
  ClusterRun tried = run;
  tried.spares = -1;
  const double enough = simulate_many(tried, count).times.effective() - share;
  for (tried.spares = 0; tried.spares < run.nodes(); ++tried.spares)
    if (simulate_many(tried, count).times.effective() >= enough) break;
  return tried.spares;
}

}  // namespace athanor
