// The expected step of a plan: its parts, its bound and its range, and which assumption moves it most.
#pragma once
#include <string>
#include <vector>

#include "command/plan_ranks.h"
#include "config/config.h"

namespace athanor {

constexpr double kVaried = 0.2;  // by which part each assumption is varied

// An assumption and what of the step changes with it.
struct Sensitivity {
  const Assumption* of = nullptr;
  double value = 0;  // expected
  double better = 0,
         worse = 0;  // seconds added to the step with the value a fifth better, or worse; better is negative
};

struct Forecast {
  Prediction expected;
  double bound = 0;                    // seconds of the step with ideal rates
  double fastest = 0, slowest = 0;     // seconds of a step, if all assumptions err by a fifth, each by itself
  std::vector<Sensitivity> sensitive;  // the one that moves the step most first; without those that do not move it
};
Forecast forecast(const RankPlan&);

struct Economy {
  double tokens_per_second, mfu, gpu_hours;  // gpu_hours: per billion tokens
};
Economy economy_of(const Config&, const Cluster&, double step_seconds, const Prediction&);

// What takes most of the step, in words.
std::string binding(const Prediction&);

std::string to_text(const Forecast&);
// One JSON object; `indent`: spaces a level, or -1 for one line.
std::string to_json(const Config&, const Cluster&, const Forecast&, int indent = -1);

}  // namespace athanor
