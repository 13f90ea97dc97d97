#include "perf/offload_time.h"

#include <algorithm>

namespace athanor {

OffloadTime offload_time(const Engine& engine, const Roofline& limits) {
  const StateTraffic& bytes = engine.state_traffic();
  if (limits.host_bytes == 0) return {};
  const double link = double(std::max(bytes.in, bytes.out)) / limits.host_bytes;
  return {link, std::max(0.0, link - least_update_seconds(engine, limits))};
}

double hiding_batch(const OffloadTime& offload, double share, double batch, double micro_seconds, double end_seconds) {
  const double step = offload.exposed / share;  // in which it is just that share
  return std::max(0.0, step - offload.exposed - end_seconds) / (micro_seconds / batch);
}

}  // namespace athanor
