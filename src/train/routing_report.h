// Converts the statistics of MoE routers over some steps into records, and checks them for problems.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "metrics/record.h"

namespace athanor {

bool routing_due(const Config&, int64_t step);  // true if routing is logged after this step: logging.routing_interval
int64_t routing_size(const ModelConfig&);  // number of values in the RouterStatistics of all layers; 0 without experts
void add_routing(std::vector<double>& sums, std::span<const double> more);

// Converts the sums of a checkpoint of an older version, which lack RouterStatistics::dropped(); others are unchanged.
std::vector<double> with_dropped(const ModelConfig&, std::vector<double> sums);

// Returns one record per layer, from the statistics of all layers; empty if no token was routed.
std::vector<RoutingMetrics> routing_records(const ModelConfig&, std::span<const double> sums, int64_t step);

// Names the layers in which an expert got no token although many were routed, one expert was chosen by nearly all
// tokens although its equal share would be small, or many choices were dropped, and the options of the run that help;
// empty if there are none.
std::string routing_alarm(std::span<const RoutingMetrics>, const Config&);

}  // namespace athanor
