// Requests of a rank to all ranks in a step, as bits that are summed with the step's scalars (engine/step_requests.h).
#pragma once
#include "engine/step_requests.h"
#include "train/signals.h"

namespace athanor {

struct StepRequests {
  int stop_signal = 0;   // one of kStopSignals; 0: none. The largest if there are several
  bool save = false;     // a checkpoint after the step
  bool end = false;      // the run ends, because of a time limit
  bool writing = false;  // files of a checkpoint are being written
  bool failed = false;   // this rank has no data for the step, so all ranks skip it (Engine::poison_step())
  bool operator==(const StepRequests&) const = default;
};

RequestBits to_bits(const StepRequests&);
StepRequests to_requests(RequestBits);

}  // namespace athanor
