// Detects avoidable slowdowns of a run: waiting for data, or fewer tokens per second than it reached before. Uses means
// over kWindow steps, so a single slow step raises no alarm.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "metrics/record.h"

namespace athanor {

class SpeedAlarm {
 public:
  static constexpr size_t kWindow = 32;       // steps
  static constexpr double kDataShare = 0.02;  // share of step time spent waiting for the loader
  static constexpr double kLeastDataMs = 1;   // minimum wait per step; below it is the cost of passing a batch
  static constexpr double kSpeedDrop = 0.2;   // relative to the best window since the start
  static constexpr double kRearmShare = 0.5;  // an alarm is rearmed when half of its excess is gone
  // After the first alarm of a kind, at most one per so many steps of the run: on shared machines more would be noise.
  static constexpr int64_t kSpacing = 2000;

  // This step's alarms as text; nearly always none. Each is raised once until its cause has passed.
  std::vector<std::string> push(const StepMetrics&);

 private:
  struct Times {
    double step_ms, data_ms, tokens;
  };
  struct Alarm {
    bool on = false, told = false;
    int64_t given = 0;
  };
  bool rises(Alarm&, double value, double limit) const;

  std::deque<Times> window_;
  int64_t steps_ = 0;
  double best_ = 0;  // tokens per second over a window
  Alarm waiting_, slow_;
};

}  // namespace athanor
