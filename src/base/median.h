// The median of measurements.
#pragma once
#include <algorithm>
#include <vector>

namespace athanor {

// Returns the median: the mean of the middle two for an even count, 0 without values.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace athanor
