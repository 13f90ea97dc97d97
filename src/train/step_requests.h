// What a rank requests of all ranks in a step, as bits that travel with the step's scalars
// (engine/step_requests.h).
#pragma once
#include "engine/step_requests.h"
#include "train/signals.h"

namespace athanor {

struct StepRequests {
  int stop_signal = 0;   // one of kStopSignals; 0: none. Of several, the largest is kept
  bool save = false;     // a checkpoint after the step
  bool end = false;      // of the run, by the clock
  bool writing = false;  // files of a checkpoint are being written
  bool failed = false;   // this rank has no data for the step, which is spoiled
  bool operator==(const StepRequests&) const = default;
};

RequestBits to_bits(const StepRequests&);
StepRequests to_requests(RequestBits);

}  // namespace athanor
