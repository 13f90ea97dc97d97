// The model of what the ranks of a run send in a step, and of the time that it adds: docs/distributed.md, "The model of
// plan --ranks". Plans are compared by it; nothing is measured.
#pragma once

namespace athanor {

class Engine;
class ProcessMesh;
struct Network;

// Collectives of one kind in a step: sent by a rank, and their time.
struct Traffic {
  double bytes = 0, seconds = 0, ends = 0;
  // `end`: this one has nothing to run beside.
  void add(double sent, double time, double times, bool end);
  // Seconds that computing of `room` seconds beside it does not hide.
  double exposed(double room) const;
};

// As ParamStore communicates.
struct StepTraffic {
  Traffic early;     // beside the last micro-batch's backward
  Traffic backward;  // beside every micro-batch's backward
  Traffic gathers;   // beside forward and backward
  Traffic ends;      // before or after the optimizer, beside nothing

  double bytes() const;
  double seconds() const;
  // Seconds that a step becomes longer, whose micro-batches compute for `compute` seconds in all.
  double exposed(double compute, double micro_batches) const;
};

StepTraffic step_traffic(const Engine&, ProcessMesh&, const Network&);

}  // namespace athanor
