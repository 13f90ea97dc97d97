// QuantizedState: state of FP8 and FP4 runs besides the weights: the quantized weights, made once per step; amax
// history and scales of delayed scaling; quantization statistics. Not used with other recipes.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "device/memory_plan.h"
#include "nn/layer_quantization.h"

namespace athanor {

inline constexpr const char* kAmaxHistory = "amax_history";

class QuantizedState {
 public:
  QuantizedState(ParamStore& params, const Recipe& recipe) : params_(params), recipe_(recipe) {}

  // State of delayed scaling, to request before the parameters are planned: for the input, the weight and the output
  // gradient of each FP8 layer, the amax of the last steps, newest first. Equal on all ranks.
  std::optional<StateSpec> history() const;
  // Chooses which weights ranks gather quantized; call before the parameters are planned. Chosen are weights whose two
  // GEMMs read the same values. Ranks agree on the amax of the blocks, then each rank quantizes its own shard.
  void gather_quantized();
  // Call after the parameters are planned. keep_quantized: keeps quantized copies, between their uses, of weights that
  // are whole on this rank and of shards that ranks gather quantized, but not of shards that are gathered in 16 bits.
  // sequential: backward of a micro-batch ends before forward of the next one begins, so that one amax per matrix is
  // enough.
  void plan(MemoryPlan&, bool keep_quantized, bool statistics, bool sequential);

  std::string how_gathered() const;  // text for logs and plans, after plan(): "ranks gather quantized weights of 12"

  Quantization read() const;     // tensors for evaluations
  Quantization collect() const;  // tensors for micro-batches, whose ops also count statistics and record the amax
  const Tensor& statistics() const { return statistics_; }
  // Bytes of amax values that are max-reduced once per step: over the ranks that shard weights, and over all ranks.
  size_t amax_of_shards() const { return size_t(found_) * sizeof(float); }
  size_t amax_of_all() const { return history_ ? params_.specs().size() * kMatrices * sizeof(float) : 0; }

  // True if this rank's statistics of a layer's matrix are counted. Ranks have different rows of inputs and output
  // gradients, but the same weights; where several ranks have the same matrix, only the first one counts. K and V heads
  // that are replicated on ranks (Placement::repeats) are counted on each of them.
  bool counts(Param weight, Matrix, const ProcessMesh&) const;

  // Quantizes the current weights. All ranks call it together.
  void quantize_weights(Ctx&) const;
  // Prepares the next step, after weights and histories were loaded, or a step was discarded.
  void begin_step(Ctx&) const;
  // Called after the update of a step, by all ranks together.
  void end_step(Ctx&, Tensor step_state) const;

 private:
  void scale(Ctx&, Tensor step_state) const;
  void quantize_shards(Ctx&) const;
  ParamStore& params_;
  const Recipe& recipe_;
  Tensor statistics_, factors_, step_amax_, amax_;  // see Quantization
  std::vector<QuantizedTensor> kept_;               // [parameters * kOperands]
  // A weight that ranks gather quantized; `kept_` has its scales.
  struct Gathered {
    Param weight;
    MatrixPart whole;
    int64_t first;  // index of its first block amax in the buffer of all amax values; FP4: the amax of the whole weight
                    // follows
    bool four_bits;  // FP4: also needs the amax of the whole weight
    int64_t all() const { return first + whole.grid().numel(); }
  };
  std::vector<Gathered> gathered_;
  int64_t found_ = 0;              // number of amax values
  std::optional<size_t> history_;  // index among the states of units
};

}  // namespace athanor
