// Context parallelism in the output of a plan: the method (ring or gather) chosen for keys and values, the bytes that
// it sends and the time that attention waits for it, and the same figures of the other method.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/choices.h"

namespace athanor {

class Engine;
struct StepTraffic;

struct ContextFigures {
  ContextMethod method = ContextMethod::gather;
  double bytes = 0, calls = 0;  // bytes and operations of a rank, per block and micro-batch
  double waits = 0, step = 0;   // seconds: exposed waiting per step, and the whole step
  size_t memory = 0;            // bytes per rank
};
ContextFigures context_figures(Engine&, const StepTraffic&, double step);

// Two lines: the figures of the method chosen for this number of ranks, and those of the other method, which `other`
// returns; `other` throws Error if that method does not fit.
std::string context_text(const ContextFigures& chosen, int64_t ranks,
                         const std::function<ContextFigures(ContextMethod)>& other);

}  // namespace athanor
