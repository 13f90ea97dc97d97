// What host memory costs. Masters and optimizer states there pass through the GPU at the end of each step, while
// weights are updated, and nothing else runs meanwhile; block inputs, and weights and gradients of units, in each
// micro-batch.
#pragma once
#include "engine/engine.h"
#include "perf/roofline.h"

namespace athanor {

struct OffloadTime {
  double link = 0;     // seconds of the direction with more bytes; the other one is copied at once
  double exposed = 0;  // of these, what the launches of the end of a step do not take anyway
  // Inputs of recomputed blocks: seconds of a step in each direction, and what of both the blocks do not hide.
  double inputs = 0, inputs_exposed = 0;
  // Weights and gradients of units: seconds of a step in the direction with more bytes; what forward and backward do
  // not hide of them and of the inputs, which then are not counted above; and how many times as large a micro-batch
  // hides all of it but the first unit of each pass: infinite where none does.
  double units = 0, units_exposed = 0, hiding_micro_batch = 0;
};

// Of a planned engine. Nothing where nothing is offloaded, or the link's rate is unknown.
OffloadTime offload_time(const Engine&, const Roofline&);

// The smallest batch, in sequences, in whose step `exposed` is at most `share`, if each sequence takes as long as one
// of the planned batch, of which a rank's micro-batches take `micro_seconds` and the end of the step `end_seconds`.
double hiding_batch(const OffloadTime&, double share, double batch, double micro_seconds, double end_seconds);

}  // namespace athanor
