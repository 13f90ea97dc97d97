// Learning-rate range test [Smith 2017]: the rate grows by a constant factor per step; the loss curve shows which rates
// are too small, which learn, and which diverge.
#pragma once
#include <optional>
#include <vector>

namespace athanor {

class LrFinder {
 public:
  static constexpr double kSmoothing =
      0.98;                               // decay of the loss average; this and the next as PyTorch Lightning's lr_find
  static constexpr double kDiverged = 4;  // smoothed losses above this multiple of the best end the test
  static constexpr size_t kSkippedFirst = 10, kSkippedLast = 1;  // points ignored for the suggestion

  // Adds a step's rate and loss; false: the loss has diverged and the test is over.
  bool add(double rate, double loss);
  const std::vector<double>& rates() const { return rates_; }
  const std::vector<double>& smoothed() const { return smoothed_; }  // exponential mean with bias correction
  // The rate at which the smoothed loss falls fastest per step; empty if there are too few points.
  std::optional<double> suggestion() const;

 private:
  std::vector<double> rates_, smoothed_;
  double mean_ = 0, best_ = 0, weight_ = 1;
};

}  // namespace athanor
