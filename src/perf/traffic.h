// Model of the communication between ranks in a step and the time it adds: docs/distributed.md, "The model of plan
// --ranks". Used to compare plans; measures nothing.
#pragma once
#include "perf/roofline.h"

namespace athanor {

class Engine;
class ProcessMesh;
struct Network;

// Collectives of one kind in a step: bytes sent by a rank, and their time.
struct Traffic {
  double bytes = 0, seconds = 0, ends = 0;
  // `end`: this one cannot overlap with computation.
  void add(double sent, double time, double times, bool end);
  // Seconds not hidden by `room` seconds of concurrent computation.
  double exposed(double room) const;
};

// Follows the communication of ParamStore and of layers whose products or sequences ranks share.
struct StepTraffic {
  Traffic early;     // overlaps with the last micro-batch's backward
  Traffic backward;  // overlaps with every micro-batch's backward
  Traffic gathers;   // overlaps with forward and backward
  Traffic ends;      // before or after the optimizer, not overlapped
  Traffic tensor;    // sums between the products that ranks share
  Traffic matrices;  // whole matrices to those that update them, and back; overlaps with the products of an update
  Traffic context;   // keys and values of ranks that share sequences, and their gradients
  double tensor_exposed =
      0;  // of tensor, seconds that products wait: what a sum takes longer than the launches beside it
  double context_exposed = 0;  // of these, seconds that attention waits: all if they are gathered, else what each hop
                               // takes longer than the launches beside it

  double between_copies = 0;  // bytes of all these that go between copies of the shards

  double bytes() const;
  double seconds() const;
  // Seconds added to a step that computes for `compute` seconds in total, `products` of them in products of the update.
  double exposed(double compute, double micro_batches, double products) const;
};

// Roofline: how long launches take beside hops of a ring and sums of products; without it these hide nothing.
StepTraffic step_traffic(const Engine&, ProcessMesh&, const Network&, const Roofline* = nullptr);

}  // namespace athanor
