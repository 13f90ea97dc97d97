// Time of copies to and from host memory. Offloaded masters and optimizer states are streamed through the GPU at the
// end of each step, while weights are updated, and nothing else runs meanwhile; block inputs, and weights and gradients
// of units, are copied in each micro-batch.
#pragma once
#include "engine/engine.h"
#include "perf/roofline.h"

namespace athanor {

struct OffloadTime {
  double link = 0;     // seconds of the direction with more bytes; both directions run at once
  double exposed = 0;  // portion of `link` beyond the launches of the end of a step
  // Inputs of recomputed blocks: seconds of a step in each direction, and the portion of both that blocks do not hide.
  double inputs = 0, inputs_exposed = 0;
  // Weights and gradients of units: seconds of a step in the direction with more bytes; the portion of these and of the
  // inputs that forward and backward do not hide, which then is not in inputs_exposed; and how many times larger a
  // micro-batch must be to hide everything but the first unit of each pass: infinite if no size does.
  double units = 0, units_exposed = 0, hiding_micro_batch = 0;
};

// For a planned engine. All zeros if nothing is offloaded, or the link's rate is unknown.
OffloadTime offload_time(const Engine&, const Roofline&);

// The smallest batch, in sequences, with which `exposed` is at most a fraction `share` of the step, if each sequence
// takes as long as in the planned batch, of which a rank's micro-batches take `micro_seconds` and the end of the step
// `end_seconds`.
double hiding_batch(const OffloadTime&, double share, double batch, double micro_seconds, double end_seconds);

}  // namespace athanor
