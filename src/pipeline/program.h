// A training step as data: for every pipeline stage the list of actions that it runs, in order. One generator per
// schedule; one interpreter (engine/) and one simulator (simulate.h) read the lists. Knows no tensors.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <vector>

#include "base/choices.h"

namespace athanor {

struct StageAction {
  // Transfers are with the stage that has the model's previous or next part: its activations come before forward, the
  // gradient of this part's output before backward.
  enum class Kind : uint8_t { receive_activation, forward, send_activation, receive_gradient, backward, send_gradient };
  Kind kind;
  int chunk = 0;  // of the stage's chunks
  int64_t micro_batch = 0;
  bool operator==(const StageAction&) const = default;
};
std::ostream& operator<<(std::ostream&, const StageAction&);  // "forward of micro-batch 3, chunk 1"
inline bool computes(const StageAction& a) {
  return a.kind == StageAction::Kind::forward || a.kind == StageAction::Kind::backward;
}
inline bool receives(const StageAction& a) {
  return a.kind == StageAction::Kind::receive_activation || a.kind == StageAction::Kind::receive_gradient;
}

// The model is cut into stages * chunks consecutive parts; part p belongs to stage p % stages and is its chunk p /
// stages [Narayanan et al. 2021, "Efficient Large-Scale Language Model Training", section 2.2].
struct PipelineShape {
  int stages = 1, chunks = 1;
  int64_t micro_batches = 1;
  int parts() const { return stages * chunks; }
  int part(int stage, int chunk) const { return chunk * stages + stage; }
  int stage_of(int part) const { return part % stages; }
  int chunk_of(int part) const { return part / stages; }
  bool operator==(const PipelineShape&) const = default;
};

using Actions = std::vector<StageAction>;

struct StepProgram {
  PipelineShape shape;
  std::vector<Actions> stages;
  // Messages that a stage may have sent to another one that has not received them yet. The next send waits.
  int sends_ahead = 2;
};

// Transfers included. gpipe and one_f_one_b have one chunk per stage. sends_ahead is the smallest number, at least 2,
// with which no stage waits for ever: whether one does depends on the lists alone, not on how long actions take.
StepProgram make_program(PipelineSchedule, const PipelineShape&);

// The stage that sends what an action receives, or receives what it sends.
int peer_of(const PipelineShape&, int stage, const StageAction&);

// Where an interpreter keeps what outlives an action.
struct Frames {
  // For each action: the frame of its chunk, which holds what forward leaves for backward, and the slot of its inputs.
  // Both are the lowest ones free; a frame is taken by a chunk's first action for a micro-batch, a slot by a stage's,
  // and both are free after the last one.
  std::vector<int> frame, slot;
  std::vector<bool> ends;   // after this action the frame is free
  std::vector<int> frames;  // of each chunk
  int slots = 0;            // micro-batches under way at once
  int most = 0;             // frames of all chunks under way at once
};
Frames assign_frames(const Actions&, int chunks);

}  // namespace athanor
