// One-shot pruning of linear layers by Wanda [Sun et al. 2024, "A Simple and Effective Pruning Approach for Large
// Language Models"]: in each row of a matrix [out, in] the weights with the smallest |w| |x|_2 become zero, where |x|_2
// is the norm of their input over calibration text. The others stay as they are.
#pragma once
#include <span>

#include "convert/sparsity.h"

namespace athanor {

// values: [out, in]; squares: [in], sums of the squares of each input. A share is of each row, rounded to whole
// weights. Of equal weights the first are pruned.
void prune_by_wanda(std::span<float> values, std::span<const double> squares, const Sparsity&);

}  // namespace athanor
