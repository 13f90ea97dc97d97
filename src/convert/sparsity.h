// One-shot pruning at export: selects weights of linear layers, as [out, in] matrices, and sets them to zero.
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

}  // namespace athanor
