// The pause before `athanor launch --max-restarts` starts the ranks again: it grows while they fail early, so that a
// fault of seconds, such as a file server that restarts, does not use up all restarts.
#pragma once
#include <algorithm>
#include <utility>

namespace athanor {

class RestartPause {
 public:
  static constexpr double kLongRun = 60, kFirst = 1, kLongest = 30;  // seconds

  // The pause after a run of this many seconds: 1, 2, 4, ... up to 30; none after a long run, which begins anew.
  double after(double lived) {
    if (lived <= kLongRun) return std::exchange(next_, std::min(2 * next_, kLongest));
    next_ = kFirst;
    return 0;
  }

 private:
  double next_ = kFirst;
};

}  // namespace athanor
