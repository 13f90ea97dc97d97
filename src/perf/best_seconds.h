// Time of a single op: the minimum of several runs.
#pragma once
#include <algorithm>
#include <chrono>
#include <limits>

#include "engine/engine.h"

namespace athanor {

// Minimum of at least three runs and 50 ms of device time, which is long enough to outlast thread wake-up and
// preemption. Ops whose launch takes much longer than their work stop after 200 ms of host time.
template <class Op>
double best_seconds(Backend backend, const Op& op, void* scratch) {
  Device& device = backend.device;
  double best = std::numeric_limits<double>::infinity(), sum = 0;
  const auto host_end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  for (int runs = 0; runs < 3 || (sum < 0.05 && std::chrono::steady_clock::now() < host_end); ++runs) {
    const auto start = device.record(Stream::compute);
    backend.ops.run(op, scratch);
    const auto end = device.record(Stream::compute);
    device.wait(*end);
    const double seconds = device.seconds(*start, *end);
    sum += seconds;
    best = std::min(best, seconds);
  }
  return best;
}

}  // namespace athanor
