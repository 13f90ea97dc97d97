// Stage: the parts of the model that this rank has in a pipeline, and the step's program for them. Without a pipeline
// there is one stage, which has the whole model.
#pragma once
#include <string>
#include <vector>

#include "model/model.h"
#include "pipeline/program.h"

namespace athanor {

struct PipelineOptions {
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int chunks = 1;                // number of parts of the model on each stage
  std::vector<int> layout = {};  // blocks of each part; empty: balanced by modelled cost
};

// Returns the blocks of each part: the given layout, or the balanced one.
std::vector<int> layout_of(const PipelineOptions&, int stages, const Model&, int64_t seq_length);

class Stage {
 public:
  Stage() = default;
  Stage(const PipelineOptions&, int stages, int stage, const Model&, int64_t seq_length);

  // Builds the program of a step with `count` micro-batches.
  void set_micro_batches(int64_t count);
  const StepProgram& program() const { return program_; }
  const Actions& actions() const { return program_.stages[size_t(stage_)]; }
  const Frames& frames() const { return frames_; }
  // leaves(): true if action i does not end its frame and action i + 1 belongs to another one. ever_leaves(): true if
  // that holds for any action of this chunk and kind.
  bool leaves(size_t i) const;
  bool ever_leaves(int chunk, StageAction::Kind) const;

  int stages() const { return stages_; }
  int number() const { return stage_; }
  bool has_head() const { return program_.shape.stage_of(int(parts_.size()) - 1) == stage_; }
  int chunks() const { return options_.chunks; }
  const ModelPart& part(int chunk) const { return parts_[size_t(program_.shape.part(stage_, chunk))]; }
  const std::vector<ModelPart>& parts() const { return parts_; }
  StageUnits units(const Model&) const;
  // Name of a chunk's arena phase: "micro-batch", or "micro-batch, chunk 1".
  std::string phase(const char* name, int chunk) const;

 private:
  PipelineOptions options_;
  int stages_ = 1, stage_ = 0;
  std::vector<ModelPart> parts_;  // parts of all stages, in the order of the model
  StepProgram program_;
  Frames frames_;
};

}  // namespace athanor
