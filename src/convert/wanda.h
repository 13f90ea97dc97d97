// One-shot pruning of linear layers by Wanda [Sun et al. 2024, "A Simple and Effective Pruning Approach for Large
// Language Models"]: in each row of a matrix [out, in] the weights with the smallest |w| |x|_2 are set to zero, where
// |x|_2 is the norm of their input over calibration text. The other weights are unchanged.
#pragma once
#include <span>

#include "convert/sparsity.h"

namespace athanor {

// values: [out, in]; squares: [in], the mean square of each input, or a multiple. A fractional sparsity applies per
// row, rounded to whole weights. The first of equal scores are pruned.
void prune_by_wanda(std::span<float> values, std::span<const float> squares, const Sparsity&);

}  // namespace athanor
