// How unusual a value is among the last ones: its z-score in a window that includes it, as llm.c's log line has it.
#pragma once
#include <cstddef>
#include <vector>

namespace athanor {

class Outlier {
 public:
  static constexpr size_t kWindow = 128;  // steps; llm.c's OUTLIER_DETECTOR_WINDOW_SIZE

  // (value - mean) / standard deviation over the window after `value` joined it. NaN until the window is full, and for
  // a value that is not finite, which does not join. 0 when all values are equal. At most sqrt(kWindow - 1) = 11.3.
  double push(double value);

 private:
  std::vector<double> values_;
  size_t next_ = 0;
};

}  // namespace athanor
