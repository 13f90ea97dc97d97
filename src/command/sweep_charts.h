// Charts over all runs of a sweep: the loss by a swept value, and the sizes of activations by width.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "perf/activation_sizes.h"
#include "plan/sweep_runs.h"
#include "report/chart.h"

namespace athanor {

// The swept values of a run except the one at `axis`: "learning_rate=1e-3, seed=1".
std::string others_than(const SweepRun&, size_t axis);

struct RunLoss {
  const SweepRun* run;
  double loss;  // NaN or infinite: the run diverged or is unfinished
};
// One line for each combination of the other values. The x axis is learning_rate, or else the first key with several
// numbers; returns a chart without lines if there is no such key.
Chart chart_of_losses(std::span<const RunLoss>);

// Activation sizes after some steps of a group of models that differ only in width.
struct WidthGroup {
  std::string others;                              // swept values shared by the group: "learning_rate=1e-3", or ""
  std::vector<std::string> widths;                 // ascending
  std::vector<std::vector<ActivationSize>> sizes;  // one list per width
};
std::string coordinate_table(const WidthGroup&);
Chart chart_of_sizes(const WidthGroup&);  // shows the activations with the largest ratios
std::string coordinate_json(std::span<const WidthGroup>, int64_t steps, double limit);

}  // namespace athanor
