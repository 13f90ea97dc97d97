// Assumptions about a predicted step beyond data sheets, as named numbers, so that a plan can print each with its
// source and the step time's sensitivity to it. The defaults are ideal: they give a bound.
#pragma once
#include <span>
#include <string>

#include "comm/network.h"
#include "device/gpu_specs.h"
#include "perf/roofline.h"

namespace athanor {

struct Assumptions {
  // Fractions of the rates of limits_of() and of a Network.
  double gemms = 1, quantized = 1;  // GEMMs in 16 or 32 bits; in FP8 or FP4
  double attention = 1, copies = 1;
  double links = 1, network = 1;  // bandwidth within a node, and between nodes
  double host = 1;                // bandwidth to host memory
  double latency = 1;             // factor on the time of a collective without bytes
  double launch = 0;              // seconds between two kernels
  double interference = 0;        // seconds by which each byte sent slows concurrent computation

  Roofline of(const Roofline&) const;
  Network of(const Network&) const;
};

// One row per member, in the order of members.
struct Assumption {
  const char* name;
  double Assumptions::*value;
  const char* unit;
};
std::span<const Assumption> all_assumptions();

// Sets an assumption from text such as "gemms=0.9". Throws Error(usage) if there is no such assumption or the value
// is invalid.
void set(Assumptions&, const std::string& text);

// Returns assumptions that training steps on such a GPU are expected to satisfy; docs/distributed.md compares them with
// published steps.
Assumptions expected_on(const GpuSpec&);

}  // namespace athanor
