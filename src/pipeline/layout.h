// How the blocks of a model are shared out among the parts of a pipeline.
#pragma once
#include <vector>

namespace athanor {

// What a forward pass costs, in any unit.
struct PartCosts {
  double block = 1, head = 0;
};

// Blocks of each part, one at least: the part that costs most costs as little as it can. The last part has the head,
// too. Parts that are left with equal numbers but for one have the larger ones at the end, where fewer micro-batches
// are under way.
std::vector<int> balanced_layout(int blocks, int parts, const PartCosts&);

}  // namespace athanor
