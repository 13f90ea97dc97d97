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

  // The alarms of this step, for people; nearly always none. Each is given once until its cause has passed.
  std::vector<std::string> push(const StepMetrics&);

 private:
  struct Times {
    double step_ms, data_ms, tokens;
  };
  std::deque<Times> window_;
  double best_ = 0;  // tokens per second over a window
  bool waiting_ = false, slow_ = false;
};

}  // namespace athanor
