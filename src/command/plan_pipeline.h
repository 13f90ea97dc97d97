// Pipeline parallelism in the output of `athanor plan`: the schedule of a step, and the memory of each stage.
#pragma once
#include <string>

#include "config/config.h"
#include "engine/engine.h"

namespace athanor {

struct PipelineDrawing {
  bool text = false;
  std::string svg = {};  // output file; "": none
};

// Prints the blocks of each model chunk, the pipeline bubble, the bytes of each stage, and the schedule.
void print_pipeline(const Config&, const Backend&, const Engine& of_first_stage, const PipelineDrawing&);

}  // namespace athanor
