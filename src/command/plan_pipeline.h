// What `athanor plan` says of a pipeline: the order of a step, and the memory of each stage.
#pragma once
#include <string>

#include "config/config.h"
#include "engine/engine.h"

namespace athanor {

struct PipelineDrawing {
  bool text = false;
  std::string svg = {};  // file; "": none
};

// Blocks of each part, the time that stages wait for each other, bytes of each stage, and the schedule.
void print_pipeline(const Config&, const Backend&, const Engine& of_first_stage, const PipelineDrawing&);

}  // namespace athanor
