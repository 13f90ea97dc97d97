// What the routers of a model with experts did since it was last asked, as records; and what of it is wrong.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "engine/engine.h"
#include "metrics/sink.h"

namespace athanor {

// One record per layer; none without experts, or where no micro-batch was trained. All ranks call it together.
std::vector<RoutingMetrics> routing_records(Engine&, int64_t step);

// Names the layers in which an expert got no token although many were routed, or one was chosen by most tokens that
// could have been spread; empty: all is well.
std::string routing_alarm(std::span<const RoutingMetrics>, int64_t experts, int64_t chosen);

// Records and alarms of a run, by its log_routing_interval.
class RoutingReport {
 public:
  bool due(const Config&, int64_t step) const;
  void report(Engine&, MetricSink&, int64_t step);  // warns once while something is wrong

 private:
  bool alarmed_ = false;  // the last records were an alarm
};

}  // namespace athanor
