// What `athanor plan` says of a pipeline: the order of a step, and the memory of each stage.
#pragma once
#include "config/config.h"
#include "engine/engine.h"

namespace athanor {

// Blocks of each part, the time that stages wait for each other, bytes of each stage; `draws`: also the schedule as
// text.
void print_pipeline(const Config&, const Backend&, const Engine& of_first_stage, bool draws);

}  // namespace athanor
