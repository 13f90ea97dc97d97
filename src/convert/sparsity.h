// What pruning in one pass at export sets to zero: the matrices of linear layers as [out, in].
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/choices.h"

namespace athanor {

struct Sparsity {
  PrunePattern pattern = PrunePattern::unstructured;
  double share = 0.5;
};
// "2:4", or a share between 0 and 1.
std::optional<Sparsity> sparsity_named(const std::string& text);

// Mask of the `count` smallest scores: 1; of equal ones the first.
std::vector<uint8_t> mask_of_smallest(std::span<const double> scores, size_t count);

struct PrunedExport {
  Sparsity sparsity;
  std::string flag;  // for errors
  // values: [out, in] of this weight, pruned in place.
  std::function<void(const std::string& weight, std::span<float> values, int64_t in)> prune;
};

}  // namespace athanor
