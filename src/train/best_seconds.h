// How long an op takes by itself, at best.
#pragma once
#include <algorithm>
#include <limits>

#include "train/engine.h"

namespace athanor {

// Best of 50 ms and of three runs: long enough to outlast the waking of threads and a neighbour's turn on a core.
template <class Op>
double best_seconds(Backend backend, const Op& op, void* scratch) {
  Device& device = backend.device;
  double best = std::numeric_limits<double>::infinity(), sum = 0;
  for (int runs = 0; runs < 3 || sum < 0.05; ++runs) {
    const auto start = device.record(Lane::compute);
    backend.ops.run(op, scratch);
    const auto end = device.record(Lane::compute);
    device.wait(*end);
    const double seconds = device.seconds(*start, *end);
    sum += seconds;
    best = std::min(best, seconds);
  }
  return best;
}

}  // namespace athanor
