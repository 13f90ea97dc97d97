// Times of a step by phase: merged from device and host clocks, and copied into the step's record.
#pragma once
#include "engine/step_table.h"
#include "metrics/record.h"

namespace athanor {

// Returns the times of a step on a device that runs asynchronously, as measured by the device. Its idle time counts as
// waiting for data, up to the time for which the host waited for data.
PhaseTimes step_times(const PhaseTimes& device, const PhaseTimes& host);

// Sets step_ms and its parts; checkpoint and evaluation count as other.
void set_times(StepMetrics&, const PhaseTimes&);

}  // namespace athanor
