// One-shot pruning of linear layers by Wanda [Sun et al. 2024, "A Simple and Effective Pruning Approach for Large
// Language Models"]: in each row of a matrix [out, in] the weights with the smallest |w| |x|_2 become zero, where |x|_2
// is the norm of their input over calibration text. The others stay as they are.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "base/choices.h"
#include "model/importance.h"

namespace athanor {

struct WandaPruning {
  PrunePattern pattern = PrunePattern::unstructured;
  double sparsity = 0.5;               // of each row, rounded to whole weights
  const Importance* inputs = nullptr;  // of every pruned matrix
};
// "2:4", or a share between 0 and 1; without inputs.
std::optional<WandaPruning> wanda_named(const std::string& text);

// squares: of each column's input. Of equal weights the first are pruned.
void prune_row(std::span<float> row, std::span<const double> squares, const WandaPruning&);

}  // namespace athanor
