// Time of copies to and from host memory. Offloaded master weights and optimizer states are streamed through the GPU at
// the end of each step, while weights are updated, when nothing else runs; block inputs, and weights and gradients of
// units, are copied in each micro-batch.
#pragma once
#include "engine/engine.h"
#include "perf/roofline.h"

namespace athanor {

struct OffloadTime {
  double link = 0;     // seconds of the direction with more bytes; both directions run at once
  double exposed = 0;  // portion of `link` not hidden by the launches of the end of a step
  // Inputs of recomputed blocks: seconds of a step in each direction; the portion that blocks do not hide, in both
  // directions together.
  double inputs = 0, inputs_exposed = 0;
  // Weights and gradients of units: seconds of a step in the direction with more bytes; the portion of these and of the
  // inputs that forward and backward do not hide (inputs_exposed is then 0); and the factor by which a micro-batch must
  // grow to hide everything except the first unit of each pass: infinite if no size does.
  double units = 0, units_exposed = 0, hiding_micro_batch = 0;
};

// Computes the times of a planned engine. All zeros if nothing is offloaded, or the link's rate is unknown.
OffloadTime offload_time(const Engine&, const Roofline&);

// Returns the smallest batch, in sequences, with which `exposed` is at most a fraction `share` of the step. Assumes
// that each sequence takes as long as in the planned batch, of which a rank's micro-batches take `micro_seconds` and
// the end of the step `end_seconds`.
double hiding_batch(const OffloadTime&, double share, double batch, double micro_seconds, double end_seconds);

}  // namespace athanor
