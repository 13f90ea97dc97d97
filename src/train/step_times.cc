#include "train/step_times.h"

#include <algorithm>

namespace athanor {

PhaseTimes step_times(const PhaseTimes& device, const PhaseTimes& host) {
  PhaseTimes times = device;
  times[Phase::data] = std::min(times[Phase::other], host[Phase::data]);
  times[Phase::other] -= times[Phase::data];
  return times;
}

void set_times(StepMetrics& m, const PhaseTimes& times) {
  const auto ms = [](int64_t ns) { return double(ns) * 1e-6; };
  m.step_ms = ms(times.total());
  m.data_ms = ms(times[Phase::data]);
  m.forward_ms = ms(times[Phase::forward]);
  m.backward_ms = ms(times[Phase::backward]);
  m.communication_ms = ms(times[Phase::communication]);
  m.optimizer_ms = ms(times[Phase::optimizer]);
  m.other_ms = ms(times[Phase::checkpoint] + times[Phase::eval] + times[Phase::other]);
}

}  // namespace athanor
