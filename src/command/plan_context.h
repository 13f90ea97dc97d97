// How ranks that share sequences get at each other's keys and values, in the words of a plan: which way was chosen,
// what it sends and how long attention waits for it, and what the other way would take.
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
  double bytes = 0, calls = 0;  // sent by a rank, per block and micro-batch
  double waits = 0, step = 0;   // seconds: that nothing hides in a step, and of all of it
  size_t memory = 0;            // bytes of a rank
};
ContextFigures context_figures(Engine&, const StepTraffic&, double step);

// Two lines: of the way that so many ranks chose, and of the other, whose figures `other` gives, or throws Error if
// that does not fit.
std::string context_text(const ContextFigures& chosen, int64_t ranks,
                         const std::function<ContextFigures(ContextMethod)>& other);

}  // namespace athanor
