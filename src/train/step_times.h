// Times of a step by phase: merged from the device's clock and the host's, and copied into the step's record.
#pragma once
#include "engine/step_table.h"
#include "metrics/record.h"

namespace athanor {

// Times of a step on a device that runs asynchronously, measured by the device. Its idle time counts as waiting for
// data, at most as long as the host waited for data.
PhaseTimes step_times(const PhaseTimes& device, const PhaseTimes& host);

// Sets step_ms and its parts; checkpoint and evaluation count as other.
void set_times(StepMetrics&, const PhaseTimes&);

}  // namespace athanor
