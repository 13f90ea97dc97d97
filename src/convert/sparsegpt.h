// One-shot pruning of linear layers by SparseGPT [Frantar & Alistarh 2023, "SparseGPT: Massive Language Models Can Be
// Accurately Pruned in One-Shot", algorithm 1]: columns are pruned one after another, and the following columns are
// adjusted to compensate for the error on the layer's inputs, as in GPTQ. A weight's score is w^2 / (H^-1)_cc, the
// remaining error of its removal after all later columns were adjusted.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "convert/sparsity.h"
#include "cpu/thread_pool.h"

namespace athanor {

struct SparseGptProblem {
  std::span<float> weight;     // [out, in], pruned in place
  std::vector<float> hessian;  // [in, in]: sum over tokens of x x^T; symmetric
  int64_t in;
  std::string_view what;     // name for errors
  double damping = 0.01;     // fraction of the mean diagonal of the Hessian, added to its diagonal
  int64_t mask_block = 128;  // columns whose mask is chosen at once, over all rows
};
// Prunes the first of equal scores. Results do not depend on the number of threads.
void prune_by_sparsegpt(SparseGptProblem, const Sparsity&, ThreadPool&);

}  // namespace athanor
