#include "perf/offload_time.h"

#include <algorithm>

namespace athanor {

OffloadTime offload_time(const Engine& engine, const Roofline& limits) {
  const StateTraffic& bytes = engine.state_traffic();
  if (limits.host_bytes == 0) return {};
  const double link = double(std::max(bytes.in, bytes.out)) / limits.host_bytes;
  OffloadTime time{.link = link, .exposed = std::max(0.0, link - least_update_seconds(engine, limits))};
  const double micros = double(engine.micro_batches()), inputs = double(engine.offloaded_inputs()) / limits.host_bytes;
  if (inputs == 0) return time;
  time.inputs = inputs * micros;
  // A recomputed block runs forward twice and backward once, which takes as long as two forwards.
  const double forward =
      (least_sum(planned_rows(engine, limits)) - least_update_seconds(engine, limits)) / (4 * micros);
  time.inputs_exposed = micros * (std::max(0.0, inputs - forward) + std::max(0.0, inputs - 3 * forward));
  return time;
}

double hiding_batch(const OffloadTime& offload, double share, double batch, double micro_seconds, double end_seconds) {
  const double step = offload.exposed / share;  // in which it is just that share
  return std::max(0.0, step - offload.exposed - end_seconds) / (micro_seconds / batch);
}

}  // namespace athanor
