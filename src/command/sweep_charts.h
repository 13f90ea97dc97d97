// What a sweep shows of all its runs: the loss by a swept value, and the sizes of activations by width.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "command/sweep_plan.h"
#include "metrics/chart.h"
#include "perf/activation_sizes.h"

namespace athanor {

// The other values of a run: "learning_rate=1e-3, seed=1".
std::string others_than(const SweepRun&, size_t axis);

struct RunLoss {
  const SweepRun* run;
  double loss;  // NaN or infinite: the run diverged or did not end
};
// A line for each combination of the other values. The axis is learning_rate, else the first key with several numbers;
// a chart without lines if there is none.
Chart chart_of_losses(std::span<const RunLoss>);

// Sizes after some steps of the models of one group of runs, which differ in width alone.
struct WidthGroup {
  std::string others;                              // the group's other values: "learning_rate=1e-3", or ""
  std::vector<std::string> widths;                 // ascending
  std::vector<std::vector<ActivationSize>> sizes;  // one list per width
};
std::string coordinate_table(const WidthGroup&);
Chart chart_of_sizes(const WidthGroup&);  // those with the largest ratios
std::string coordinate_json(std::span<const WidthGroup>, int64_t steps, double limit);

}  // namespace athanor
