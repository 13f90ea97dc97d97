// One-shot pruning at export: selects weights of linear layers, as [out, in] matrices, and sets them to zero.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/choices.h"
#include "cpu/thread_pool.h"

namespace athanor {

struct Sparsity {
  PrunePattern pattern = PrunePattern::unstructured;
  double share = 0.5;
};
// Parses "2:4" or a fraction between 0 and 1.
std::optional<Sparsity> sparsity_named(const std::string& text);

// Mask with 1 for the `count` smallest scores; of equal scores, the first are selected.
std::vector<uint8_t> mask_of_smallest(std::span<const double> scores, size_t count);

struct PrunedExport {
  Sparsity sparsity;
  std::string flag;  // option name for errors
  // Prunes the values [out, in] of a weight in place.
  std::function<void(const std::string& weight, std::span<float> values, int64_t in)> prune;
};

// One-shot pruning of linear layers by Wanda [Sun et al. 2024, "A Simple and Effective Pruning Approach for Large
// Language Models"]: in each row of a matrix [out, in] the weights with the smallest |w| |x|_2 are set to zero, where
// |x|_2 is the norm of their input over calibration text. The other weights are unchanged.

// values: [out, in]; squares: [in], the mean square of each input, or a multiple. A fractional sparsity applies per
// row, rounded to whole weights. The first of equal scores are pruned.
void prune_by_wanda(std::span<float> values, std::span<const float> squares, const Sparsity&);

// One-shot pruning of linear layers by SparseGPT [Frantar & Alistarh 2023, "SparseGPT: Massive Language Models Can Be
// Accurately Pruned in One-Shot", algorithm 1]: columns are pruned one after another, and the following columns are
// adjusted to compensate for the error on the layer's inputs, as in GPTQ. A weight's score is w^2 / (H^-1)_cc, the
// remaining error of its removal after all later columns were adjusted.

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
