#include "metrics/outlier.h"

#include <cmath>
#include <limits>

namespace athanor {

double Outlier::push(double value) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  if (!std::isfinite(value)) return kNone;
  if (values_.size() < kWindow) {
    values_.push_back(value);
    return kNone;
  }
  values_[next_] = value;
  next_ = (next_ + 1) % kWindow;
  double mean = 0;  // recomputed every time: only 128 additions, and no drift
  for (double v : values_) mean += v / double(kWindow);
  double variance = 0;
  for (double v : values_) variance += (v - mean) * (v - mean) / double(kWindow);
  const double deviation = std::sqrt(variance);
  // Rounding of the mean of equal values must not count as a deviation.
  if (!(deviation > 1e-12 * std::fabs(mean))) return 0;
  return (value - mean) / deviation;
}

}  // namespace athanor
