// cut: the slice of a parameter that a rank of a tensor-parallel group holds.
#pragma once
#include <vector>

#include "param/spec.h"

namespace athanor {

struct AxisRange {
  int64_t begin = 0, end = 0;  // along the axis of the cut
  int ranks = 1;               // that have it, neighbours
  bool operator==(const AxisRange&) const = default;
};

// Slice `index` of `count` equal ones: one range per part of spec.cut, in order, all covering the same heads. Without
// an axis there are no ranges: every rank holds the whole. Throws an Error naming the parameter if a part is not
// divisible by whole heads, or, of parts that may be repeated, `count` by their number. Of a padded cut, slices are
// equal or differ by one.
std::vector<AxisRange> cut(const ParamSpec& spec, int64_t count, int64_t index);

}  // namespace athanor
