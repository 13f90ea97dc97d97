// cut: which part of a parameter a rank of a tensor-parallel group holds.
#pragma once
#include <vector>

#include "param/spec.h"

namespace athanor {

struct AxisRange {
  int64_t begin = 0, end = 0;  // along the axis of the cut
  bool operator==(const AxisRange&) const = default;
};

// Share `index` of `count` equal ones: one range per part of spec.cut, in order; all of them hold the same heads.
// Without an axis there are no ranges: every rank has the whole. Throws an Error naming the parameter if a part cannot
// be divided without tearing a head.
std::vector<AxisRange> cut(const ParamSpec& spec, int64_t count, int64_t index);

}  // namespace athanor
