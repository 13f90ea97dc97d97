// Draws a simulated step: when each stage computes which pass, and when it waits.
#pragma once
#include <string>

#include "pipeline/simulate.h"

namespace athanor {

// Text with one line per stage and one column per `unit` of time: "f3" and "b3" are forward and backward of micro-batch
// 3 (with several chunks, "f3.1" is the forward of its chunk 1); dots where the stage waits.
std::string schedule_text(const StepProgram&, const Simulation&, double unit);

// The schedule as an SVG picture: a row per stage, passes as wide as their duration, labelled with the micro-batch;
// forward and backward in different colors, later chunks darker.
std::string schedule_svg(const StepProgram&, const Simulation&);

}  // namespace athanor
