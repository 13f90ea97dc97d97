#include "analysis/lr_finder.h"

#include <algorithm>
#include <cmath>

namespace athanor {

bool LrFinder::add(double rate, double loss) {
  if (!std::isfinite(loss)) return false;
  mean_ = kSmoothing * mean_ + (1 - kSmoothing) * loss;
  weight_ *= kSmoothing;
  const double smoothed = mean_ / (1 - weight_);
  if (smoothed_.size() > 1 && smoothed > kDiverged * best_) return false;
  best_ = smoothed_.empty() ? smoothed : std::min(best_, smoothed);
  rates_.push_back(rate);
  smoothed_.push_back(smoothed);
  return true;
}

// Central differences, one-sided at the ends of the used range, like numpy.gradient.
std::optional<double> LrFinder::suggestion() const {
  if (smoothed_.size() < kSkippedFirst + kSkippedLast + 2) return std::nullopt;
  const size_t begin = kSkippedFirst, last = smoothed_.size() - kSkippedLast - 1;
  size_t steepest = begin;
  double least = 0;
  for (size_t i = begin; i <= last; ++i) {
    const size_t before = std::max(begin, i - 1), after = std::min(last, i + 1);
    const double slope = (smoothed_[after] - smoothed_[before]) / double(after - before);
    if (i == begin || slope < least) least = slope, steepest = i;
  }
  return least < 0 ? std::optional(rates_[steepest]) : std::nullopt;
}

}  // namespace athanor
