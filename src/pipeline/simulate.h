// A step's program run without a model: does it end, how long does it take, what does each stage have under way.
#pragma once
#include <vector>

#include "pipeline/program.h"

namespace athanor {

// Times of a micro-batch on a whole stage; a chunk takes a share of them.
struct PassTimes {
  double forward = 1, backward = 2;
  double weights = 1;   // part of backward: the weights' gradients, where a schedule has them apart
  double transfer = 0;  // from one stage to another, while both compute
};

struct TimedAction {
  StageAction action;
  double begin = 0, end = 0;
};

struct Simulation {
  std::vector<std::vector<TimedAction>> stages;
  double seconds = 0;  // of the step
  double useful = 0;   // of the stage that computes longest
  double bubble() const { return seconds - useful; }
  // Forwards of a whole stage that each stage has under way at most: begun, and backward has not ended, with that of
  // the weights.
  std::vector<double> in_flight;
};

// Whether every stage comes to the end of its list.
bool ends(const StepProgram&);
// Throws an Error that names the stages and actions that wait for each other, or transfers that do not match.
Simulation simulate(const StepProgram&, const PassTimes&);

// Time of a step over that of a stage's own passes, where backward takes twice as long as forward: 1 or more.
double with_waits(const StepProgram&);

}  // namespace athanor
