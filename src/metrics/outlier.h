// z-score of a value within a window of recent values that includes it, as in llm.c's log line.
#pragma once
#include <cstddef>
#include <vector>

namespace athanor {

class Outlier {
 public:
  static constexpr size_t kWindow = 128;  // steps; llm.c's OUTLIER_DETECTOR_WINDOW_SIZE

  // Returns (value - mean) / standard deviation over the window including `value`. NaN until the window is full, and
  // for a non-finite value, which is not added; 0 if all values are equal. At most sqrt(kWindow - 1) = 11.3.
  double push(double value);

 private:
  std::vector<double> values_;
  size_t next_ = 0;
};

}  // namespace athanor
