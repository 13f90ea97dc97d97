// One-shot pruning of linear layers by SparseGPT [Frantar & Alistarh 2023, "SparseGPT: Massive Language Models Can Be
// Accurately Pruned in One-Shot", algorithm 1]: columns become sparse one after another, and those that follow move so
// that they make up for the error on the layer's inputs, as in GPTQ. A weight's score is w^2 / (H^-1)_cc, the error
// that its removal costs once all later columns have moved.
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
  std::string_view what;     // for errors
  double damping = 0.01;     // of the mean diagonal of the Hessian, added to it
  int64_t mask_block = 128;  // columns of which a share is pruned at once, over all rows
};
// Prunes the first of equal scores. The number of threads changes no bit.
void prune_by_sparsegpt(SparseGptProblem, const Sparsity&, ThreadPool&);

}  // namespace athanor
