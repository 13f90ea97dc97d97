// Assigns the blocks of a model to the parts of a pipeline.
#pragma once
#include <vector>

namespace athanor {

// Cost of a forward pass, in any unit.
struct PartCosts {
  double block = 1, head = 0;
};

// Returns the number of blocks of each part, at least one, such that the most expensive part is as cheap as possible.
// The last part also has the head. If the other parts cannot be equal, the larger ones are the last, where fewer
// micro-batches are in flight.
std::vector<int> balanced_layout(int blocks, int parts, const PartCosts&);

}  // namespace athanor
