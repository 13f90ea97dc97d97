#include "pipeline/layout.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/int.h"

namespace athanor {

std::vector<int> balanced_layout(int blocks, int parts, const PartCosts& costs) {
  CHECK(parts > 0 && blocks >= parts, blocks, " blocks for ", parts, " parts");
  if (parts == 1) return {blocks};
  int last = 1;
  double least = std::numeric_limits<double>::infinity();
  for (int n = 1; n <= blocks - (parts - 1); ++n) {
    const double most = std::max(costs.block * div_ceil(blocks - n, parts - 1), costs.block * n + costs.head);
    if (most < least) least = most, last = n;
  }
  const int rest = blocks - last, others = parts - 1;
  std::vector<int> layout;
  for (int i = 0; i < others; ++i) layout.push_back(rest / others + (i >= others - rest % others ? 1 : 0));
  layout.push_back(last);
  return layout;
}

}  // namespace athanor
