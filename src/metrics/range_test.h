// The learning-rate range test [Smith 2017]: the rate grows by one factor each step, and the course of the loss says
// which rates are too small to learn by, which learn, and which diverge.
#pragma once
#include <optional>
#include <vector>

namespace athanor {

class RangeTest {
 public:
  static constexpr double kSmoothing = 0.98;  // of the loss; this and the next as PyTorch Lightning's lr_find
  static constexpr double kDiverged = 4;      // smoothed losses above this multiple of the best end the test
  static constexpr size_t kSkippedFirst = 10, kSkippedLast = 1;  // points that suggest nothing

  // A step's rate and loss; false: it has diverged, and further steps tell nothing.
  bool add(double rate, double loss);
  const std::vector<double>& rates() const { return rates_; }
  const std::vector<double>& smoothed() const { return smoothed_; }  // exponential mean without its start's bias
  // The rate at which the smoothed loss falls fastest per step; nothing where there are too few points.
  std::optional<double> suggestion() const;

 private:
  std::vector<double> rates_, smoothed_;
  double mean_ = 0, best_ = 0, weight_ = 1;
};

}  // namespace athanor
