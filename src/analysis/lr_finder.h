// Learning-rate range test [Smith 2017]: the learning rate grows by a constant factor per step; the loss curve shows
// which rates are too small, which train, and which diverge.
#pragma once
#include <optional>
#include <vector>

namespace athanor {

class LrFinder {
 public:
  static constexpr double kSmoothing = 0.98;  // decay of the loss average; like kDiverged, from PyTorch Lightning's
                                              // lr_find
  static constexpr double kDiverged = 4;      // the test ends when the smoothed loss exceeds this multiple of the best
  static constexpr size_t kSkippedFirst = 10, kSkippedLast = 1;  // points at either end that the suggestion ignores

  // Adds the learning rate and loss of a step; false: the loss has diverged and the test is over.
  bool add(double rate, double loss);
  const std::vector<double>& rates() const { return rates_; }
  const std::vector<double>& smoothed() const { return smoothed_; }  // exponential moving average with bias correction
  // The learning rate where the smoothed loss falls fastest per step; nullopt if there are too few points or the loss
  // never falls.
  std::optional<double> suggestion() const;

 private:
  std::vector<double> rates_, smoothed_;
  double mean_ = 0, best_ = 0, weight_ = 1;
};

}  // namespace athanor
