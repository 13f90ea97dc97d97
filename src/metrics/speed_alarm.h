// Tells when a run becomes slower than it need be: waiting for data, or fewer tokens per second than it has shown that
// it can. Judges means over kWindow steps, so that one slow step is no alarm.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "metrics/record.h"

namespace athanor {

class SpeedAlarm {
 public:
  static constexpr size_t kWindow = 32;       // steps
  static constexpr double kDataShare = 0.02;  // of a step's time spent waiting for the loader
  static constexpr double kLeastDataMs = 1;   // of it in a step; less is the price of passing a batch on
  static constexpr double kSpeedDrop = 0.2;   // below the best window since the start
  static constexpr double kRearmShare = 0.5;  // an alarm is given again after half of its excess was gone
  // Of each of the two, one in so many steps since the start: where neighbours come and go, more would say nothing.
  static constexpr int64_t kSpacing = 2000;

  // The alarms of this step, for people; nearly always none. Each is given once until its cause has passed.
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
