// Assumptions: what a predicted step takes for granted beyond data sheets, as numbers with names, so that a plan can
// state each with its source and say how much the step depends on it. The default is the ideal: a bound.
#pragma once
#include <span>
#include <string>

#include "comm/network.h"
#include "device/gpu_specs.h"
#include "perf/roofline.h"

namespace athanor {

struct Assumptions {
  // Shares of the rates of limits_of() and of a Network.
  double products = 1, codes = 1;  // GEMMs in 16 or 32 bits; in 8 or 4 bits
  double attention = 1, copies = 1;
  double links = 1, network = 1;  // bandwidth within a node, and between nodes
  double host = 1;                // bandwidth to host memory
  double latency = 1;             // factor of the time of a collective of no bytes
  double launch = 0;              // seconds between two kernels
  double interference = 0;        // seconds that computing loses for each byte sent meanwhile

  Roofline of(const Roofline&) const;
  Network of(const Network&) const;
};

// One row for each member, in their order.
struct Assumption {
  const char* name;
  double Assumptions::*value;
  const char* unit;
};
std::span<const Assumption> all_assumptions();

// "products=0.9". Throws Error(usage) if there is no such assumption, or the value is none that it can have.
void set(Assumptions&, const std::string& text);

// What training steps on such a GPU are expected to reach; docs/distributed.md says how this compares with published
// steps.
Assumptions expected_on(const GpuSpec&);

}  // namespace athanor
