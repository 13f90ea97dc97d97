// The expected step of a plan: its parts, its lower bound and its range, and the assumptions with the largest effects.
#pragma once
#include <string>
#include <vector>

#include "config/config.h"
#include "plan/rank_plan.h"

namespace athanor {

constexpr double kVaried = 0.2;  // relative variation of each assumption

// An assumption, and how the step time depends on it.
struct Sensitivity {
  const Assumption* of = nullptr;
  double value = 0;  // expected value
  double better = 0,
         worse = 0;  // seconds added to the step if the value is a fifth better (negative) or a fifth worse
};

struct Forecast {
  Prediction expected;
  double bound = 0;                    // seconds of the step at ideal rates, or at the assumed ones if these are better
  double fastest = 0, slowest = 0;     // range of the step in seconds, if all assumptions are off by a fifth,
                                       // independently
  std::vector<Sensitivity> sensitive;  // largest effect on the step first; those without effect are omitted
};
Forecast forecast(const RankPlan&);

struct Economy {
  double tokens_per_second, mfu, gpu_hours;  // gpu_hours: per billion tokens
};
Economy economy_of(const Config&, const Cluster&, double step_seconds, const Prediction&);

// The largest part of the step, in words.
std::string binding(const Prediction&);

std::string to_text(const Forecast&);
// One JSON object; `indent`: spaces per level, or -1 for a single line.
std::string to_json(const Config&, const Cluster&, const Forecast&, int indent = -1);

}  // namespace athanor
