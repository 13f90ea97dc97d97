// Host time and the median of measurements.
#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

namespace athanor {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// Returns the median: the mean of the middle two for an even count, 0 without values.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

}  // namespace athanor
