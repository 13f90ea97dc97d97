// A training step as data: for every pipeline stage the list of actions that it runs, in order. One generator per
// schedule; one interpreter (engine/) and one simulator (simulate.h) read the lists. Knows no tensors.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <vector>

#include "base/choices.h"

namespace athanor {

struct StageAction {
  // Transfers are to and from the stage that has the model's previous or next part: activations are received before
  // forward, the gradient of this part's output before backward. Zero-bubble schedules run backward in two halves:
  // input_backward computes the gradients of activations, weight_backward those of the linear layers' weights.
  enum class Kind : uint8_t {
    receive_activation,
    forward,
    send_activation,
    receive_gradient,
    backward,
    input_backward,
    send_gradient,
    weight_backward
  };
  Kind kind;
  int chunk = 0;  // number among the stage's chunks
  int64_t micro_batch = 0;
  bool operator==(const StageAction&) const = default;
};
std::ostream& operator<<(std::ostream&, const StageAction&);  // "forward of micro-batch 3, chunk 1"
inline bool receives(const StageAction& a) {
  return a.kind == StageAction::Kind::receive_activation || a.kind == StageAction::Kind::receive_gradient;
}
inline bool sends(const StageAction& a) {
  return a.kind == StageAction::Kind::send_activation || a.kind == StageAction::Kind::send_gradient;
}
inline bool computes(const StageAction& a) { return !receives(a) && !sends(a); }
// True if the gradient of the chunk's input is complete after the action.
inline bool gives_gradient(const StageAction& a) {
  return a.kind == StageAction::Kind::backward || a.kind == StageAction::Kind::input_backward;
}

// The model is split into stages * chunks consecutive parts; part p belongs to stage p % stages and is its chunk p /
// stages [Narayanan et al. 2021, "Efficient Large-Scale Language Model Training", section 2.2]. With `v`, every second
// chunk visits the stages in reverse order, so that the first stage has the model's first and last part [Qi et al.
// 2024, "Pipeline Parallelism with Controllable Memory"].
struct PipelineShape {
  int stages = 1, chunks = 1;
  int64_t micro_batches = 1;
  bool v = false;
  int parts() const { return stages * chunks; }
  int part(int stage, int chunk) const { return chunk * stages + place(stage, chunk); }
  int stage_of(int part) const { return place(part % stages, chunk_of(part)); }
  int chunk_of(int part) const { return part / stages; }
  bool operator==(const PipelineShape&) const = default;

 private:
  int place(int stage, int chunk) const { return v && chunk % 2 == 1 ? stages - 1 - stage : stage; }
};

using Actions = std::vector<StageAction>;

struct StepProgram {
  PipelineShape shape;
  std::vector<Actions> stages;
  bool splits_backward = false;  // into input gradients and weight gradients
  // Maximum number of messages that a stage has sent to another stage and that were not received yet. The next send
  // waits.
  int sends_ahead = 2;
};

// Makes the action lists of a schedule, including transfers, also between chunks of one stage. zbv has two chunks per
// stage, in a V; all others except interleaved have one. sends_ahead is the smallest number, at least 2, with which no
// stage waits forever: that depends only on the lists, not on the duration of actions.
StepProgram make_program(PipelineSchedule, PipelineShape);

// The stage that sends the message that an action receives, or receives the message that it sends; it may be the same
// stage.
int peer_of(const PipelineShape&, int stage, const StageAction&);

// Places where the interpreter stores data that must outlive an action.
struct Frames {
  // For each action: the frame of its chunk, which holds the data that forward saves for backward, and the slot of its
  // inputs. Both are the lowest free numbers. A chunk's first action for a micro-batch takes a frame, a stage's first
  // action takes a slot; the last action frees them.
  std::vector<int> frame, slot;
  std::vector<bool> ends;   // after this action the frame is free
  std::vector<int> frames;  // number of frames of each chunk
  int slots = 0;            // max micro-batches in flight
  int most = 0;             // max frames of all chunks in use at once
};
Frames assign_frames(const Actions&, int chunks);

}  // namespace athanor
