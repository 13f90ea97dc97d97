// Time that a pipeline adds to a step, by simulating its program (pipeline/simulate.h).
#pragma once

namespace athanor {

class Engine;
struct Network;

struct PipelineTime {
  double waits = 0;    // seconds that stages wait for each other if transfers take no time
  double sending = 0;  // additional seconds because of transfers
};

// compute: seconds that the slowest stage computes for all micro-batches of a step; backward takes two thirds of that,
// half of it for weight gradients. Stages are `stride` ranks apart.
PipelineTime pipeline_time(const Engine&, const Network&, double compute, int stride);

// Returns the bytes of activations and gradients that a middle stage sends in a step.
double sent_to_stages(const Engine&);

}  // namespace athanor
