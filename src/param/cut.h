// cut(): the slice of a parameter that a tensor-parallel rank holds.
#pragma once
#include <vector>

#include "param/spec.h"

namespace athanor {

struct AxisRange {
  int64_t begin = 0, end = 0;  // along the axis of spec.cut
  int ranks = 1;               // number of neighbouring ranks that hold this range
  bool operator==(const AxisRange&) const = default;
};

// Returns slice `index` of `count` equal slices: one range per part of spec.cut, in order, all covering the same heads.
// If spec.cut has no axis, there are no ranges: each rank holds the whole parameter. Throws an Error naming the
// parameter unless the number of heads of each part is a multiple of `count`; in repeated parts `count` may instead be
// a multiple of that number. Slices of a padded cut are equal or differ by one.
std::vector<AxisRange> cut(const ParamSpec& spec, int64_t count, int64_t index);

}  // namespace athanor
