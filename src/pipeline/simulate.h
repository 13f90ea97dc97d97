// Simulates a step's program without a model: whether it ends, how long it takes, and the passes in flight on each
// stage.
#pragma once
#include <vector>

#include "pipeline/program.h"

namespace athanor {

// Times of a micro-batch on a whole stage; each of its chunks takes an equal share.
struct PassTimes {
  double forward = 1, backward = 2;
  double weights = 1;   // portion of backward for weight gradients, in schedules that split backward
  double transfer = 0;  // time of a message from one stage to another, while both compute
};

struct TimedAction {
  StageAction action;
  double begin = 0, end = 0;
};

struct Simulation {
  std::vector<std::vector<TimedAction>> stages;
  double seconds = 0;  // duration of the step
  double useful = 0;   // compute time of the stage that computes longest
  double bubble() const { return seconds - useful; }
  // Maximum number of forward passes in flight on each stage, in passes of a whole stage: forward has begun, and
  // backward, including weight gradients, has not ended.
  std::vector<double> in_flight;
};

// True if every stage reaches the end of its list.
bool ends(const StepProgram&);
// Throws an Error that names the stages and actions that wait for each other, or transfers that do not match.
Simulation simulate(const StepProgram&, const PassTimes&);

// Step time over the compute time of the busiest stage, if backward takes twice as long as forward: at least 1.
double with_waits(const StepProgram&);

}  // namespace athanor
