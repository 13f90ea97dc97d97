#include "metrics/speed_alarm.h"

#include <algorithm>

#include "base/error.h"
#include "base/format.h"

namespace athanor {
// True if the alarm is to be raised now; `on` is reset when the value falls below kRearmShare of the limit.
bool SpeedAlarm::rises(Alarm& alarm, double value, double limit) const {
  alarm.on = value > limit * (alarm.on ? kRearmShare : 1);
  if (!alarm.on) alarm.reported = false;
  if (!alarm.on || alarm.reported) return false;
  if (alarm.given > 0 && steps_ < kSpacing * (alarm.given + 1)) return false;
  alarm.reported = true;
  ++alarm.given;
  return true;
}

std::vector<std::string> SpeedAlarm::push(const StepMetrics& m) {
  if (!(m.step_ms > 0)) return {};
  ++steps_;
  window_.push_back({m.step_ms, m.data_ms, m.tokens_per_second * m.step_ms * 1e-3});
  if (window_.size() > kWindow) window_.pop_front();
  if (window_.size() < kWindow) return {};
  Times sum{};
  for (const Times& t : window_) sum = {sum.step_ms + t.step_ms, sum.data_ms + t.data_ms, sum.tokens + t.tokens};
  const double share = sum.data_ms / sum.step_ms, speed = sum.tokens / (sum.step_ms * 1e-3);
  best_ = std::max(best_, speed);

  std::vector<std::string> alarms;
  if (rises(waiting_, sum.data_ms < kLeastDataMs * kWindow ? 0 : share, kDataShare))
    alarms.push_back(cat("waiting for data takes ", format_percent(share), " of the last ", kWindow,
                         " steps: the disk or the network that holds the shards is too slow, or shared"));
  if (best_ > 0 && rises(slow_, 1 - speed / best_, kSpeedDrop))
    alarms.push_back(cat(format_count(speed), " tokens/s over the last ", kWindow, " steps, ",
                         format_percent(1 - speed / best_), " less than the best ", kWindow,
                         " since the start: look for other load, heat or a slow device"));
  return alarms;
}

}  // namespace athanor
