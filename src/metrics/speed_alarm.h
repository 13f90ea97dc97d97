// Detects avoidable slowdowns of a run: waiting for data, or a throughput drop. Uses means over kWindow steps, so that
// a single slow step raises no alarm.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "metrics/record.h"

namespace athanor {

class SpeedAlarm {
 public:
  static constexpr size_t kWindow = 32;       // steps
  static constexpr double kDataShare = 0.02;  // fraction of the step time spent waiting for the loader
  static constexpr double kLeastDataMs = 1;   // minimum wait per step; shorter waits are the cost of passing a batch
  static constexpr double kSpeedDrop = 0.2;   // throughput drop relative to the best window since the start
  static constexpr double kRearmShare = 0.5;  // an alarm is rearmed when its value falls below this fraction of the
                                              // limit
  // Minimum number of steps of the run per alarm of a kind, after its first: more would be noise on shared machines.
  static constexpr int64_t kSpacing = 2000;

  // Adds a step and returns its alarms as text, usually none. Each alarm is raised once until its cause has passed.
  std::vector<std::string> push(const StepMetrics&);

 private:
  struct Times {
    double step_ms, data_ms, tokens;
  };
  struct Alarm {
    bool on = false, reported = false;
    int64_t given = 0;
  };
  bool rises(Alarm&, double value, double limit) const;

  std::deque<Times> window_;
  int64_t steps_ = 0;
  double best_ = 0;  // best tokens per second over a window
  Alarm waiting_, slow_;
};

}  // namespace athanor
