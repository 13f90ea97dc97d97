// CodeState: what a run in 8 or 4 bits keeps from step to step beside its weights: codes of the weights, made once per
// step; the history and the scales of delayed scaling; statistics. Absent with other recipes.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "device/memory_plan.h"
#include "nn/codes.h"

namespace athanor {

inline constexpr const char* kAmaxHistory = "amax_history";

class CodeState {
 public:
  CodeState(ParamStore& params, const Recipe& recipe) : params_(params), recipe_(recipe) {}

  // State of delayed scaling, requested before the parameters are planned: for the input, the weight and the output
  // gradient of each FP8 layer, the amax of the last steps, newest first. The same on all ranks.
  std::optional<StateSpec> history() const;
  // Chooses the weights that ranks gather quantized, before the parameters are planned: those whose two GEMMs read the
  // same values. Ranks agree on the amax of the blocks, and each quantizes its own shard.
  void gather_codes();
  // After the parameters. Codes are kept of weights that lie whole on this rank between their uses, and of shards where
  // ranks gather codes; so not of shards that are gathered in 16 bits. in_turns: a micro-batch's backward ends before
  // the next one's forward begins, so that one amax for each matrix is enough.
  void plan(MemoryPlan&, bool keep_codes, bool statistics, bool in_turns);

  std::string how_gathered() const;  // for logs and plans, of planned parameters: "ranks gather codes of 12"

  Quantization read() const;     // for evaluations
  Quantization collect() const;  // for micro-batches: these also count, and find the largest magnitudes
  const Tensor& statistics() const { return statistics_; }
  // Bytes of largest magnitudes whose maximum is taken once per step: over the ranks that share weights, over all.
  size_t largest_of_shards() const { return size_t(found_) * sizeof(float); }
  size_t largest_of_all() const { return history_ ? params_.specs().size() * kMatrices * sizeof(float) : 0; }

  // Whether this rank's statistics of a matrix of a layer count. Ranks have other rows of inputs and of gradients of
  // outputs, and the same weights; of what several have alike the first one's count. The key heads that ranks repeat
  // (Placement::repeats) count on each.
  bool counts(Param weight, Matrix, const ProcessMesh&) const;

  // Codes of the weights as they are. All ranks call it together.
  void make_codes(Ctx&) const;
  // As at the beginning of a step: after weights and histories were set, or a step was given up.
  void begin_step(Ctx&) const;
  // After the update of a step. All ranks call it together.
  void end_step(Ctx&, Tensor step_state) const;

 private:
  void scale(Ctx&, Tensor step_state) const;
  void make_codes_of_shards(Ctx&) const;
  ParamStore& params_;
  const Recipe& recipe_;
  Tensor statistics_, factors_, amax_, largest_;  // as Quantization's
  std::vector<Codes> kept_;                       // [parameters * kOperands]
  // Weights whose codes ranks gather: `kept_` has their scales.
  struct Gathered {
    Param weight;
    MatrixPart whole;
    int64_t first;   // among the largest magnitudes of blocks of all of them; that of all blocks behind its own
    bool four_bits;  // which need that
    int64_t all() const { return first + whole.grid().numel(); }
  };
  std::vector<Gathered> gathered_;
  int64_t found_ = 0;              // largest magnitudes
  std::optional<size_t> history_;  // among the states of units
};

}  // namespace athanor
