// Model: a family declares its parameters and the body of one block; everything else is shared. Recomputation, sharding
// and pipeline stages split the model at block boundaries.
#pragma once
#include <memory>

#include "base/choices.h"
#include "config/model_config.h"
#include "nn/taps.h"

namespace athanor {

class Model {
 public:
  explicit Model(const ModelConfig& config) : config_(config) {}
  virtual ~Model() = default;

  virtual void declare() = 0;                        // called once, before anything else
  virtual Var embed(Ctx&, const Batch&, Taps&) = 0;  // also sets Taps::value_rows if blocks read them
  // Takes and returns the residual stream [N, C].
  virtual Var block(Ctx&, int layer, Var h, const Batch&, const Taps&) = 0;
  virtual Var final_norm(Ctx&, Var h, const Taps&) = 0;

  // Adds parameters (with gradients and states when training) and constant tables to the plan.
  void plan(MemoryPlan&, const Recipe&, bool training, std::vector<StateSpec> states, const Sharding& = {});
  void init_constants(Device&);  // after MemoryPlan::commit()

  const ModelConfig& config() const { return config_; }
  // Changes the window of the layers with sliding-window attention.
  void set_sliding_window(int64_t tokens) { config_.sliding_window = tokens; }
  ParamStore& params() { return params_; }
  const ParamStore& params() const { return params_; }
  Param head() const { return head_; }
  Param head_bias() const { return head_bias_; }
  Param router_bias() const { return router_bias_; }  // [layers with experts, E] f32; empty: routers have no bias
  AttentionShape attention_shape(int layer) const;    // shape for this rank's heads, after plan()
  // Throws Error(usage) if a pattern of initializer_ranges matches no declared weight.
  void require_patterns_used() const;

 protected:
  // The rows of the head, or those of a rank's part of the vocabulary, are padded in memory to a multiple of this, so
  // that its GEMMs run at full speed.
  static constexpr int64_t kVocabMultiple = 64;

  Net net(Ctx& c) { return {c, params_}; }
  Tensor rope_table() const { return rope_table_; }
  // Declares a weight that is one tensor of the file, or several stacked along dimension 0.
  Param matrix(const std::string& name, int unit, const std::vector<std::pair<std::string, Shape>>& parts,
               float std_dev, Cut cut, bool in_out = false, PartialGradient partial = PartialGradient::never);
  Param vector(const std::string& name, int unit, const std::vector<std::pair<std::string, int64_t>>& parts,
               float value, Cut cut = {}, PartialGradient partial = PartialGradient::never);
  // Declare tables and biases of the padded vocabulary, which tensor-parallel ranks may shard, and a table with one row
  // per position.
  Param vocab_table(const std::string& name, int unit, const std::string& file_name);
  Param vocab_bias(const std::string& name, int unit, const std::string& file_name);
  Param position_table(const std::string& name, int unit, const std::string& file_name);
  Param table(const std::string& name, int unit, const HfSlice&, int64_t rows, const Cut&);
  Norm layer_norm(const std::string& name, int unit, float gain = 1);  // with a bias, as in GPT-2
  // Standard deviation of initial matrices: 0.02 for most; output projections of residual branches are divided by
  // sqrt(2 L) [Radford et al. 2019, sec. 2.3]. With muP [Yang et al. 2022] they are divided by the square root of the
  // width, and the final norm's gain by the width, which scales the logits.
  float init_std() const;
  float output_init_std() const;
  // Returns the standard deviation for the weight of this name: that of the matching pattern in initializer_ranges,
  // else `otherwise`.
  float std_of(const std::string& file_name, float otherwise) const;
  float final_gain() const { return float(1 / config_.mup_width); }
  int head_unit() const { return int(config_.num_hidden_layers) + 1; }

  ModelConfig config_;
  ParamStore params_;
  Param head_, head_bias_, router_bias_;
  bool has_rope_ = false;
  Tensor ones_;  // [C, or D if it is larger] f32: gains of norms without a parameter

 private:
  Tensor rope_table_;  // [max_position_embeddings, rotary_dim()] f32: cos, then sin
};

std::unique_ptr<Model> make_model(const ModelConfig&);

// Selects the activations that are kept for backward, and those that are recomputed.
struct Recompute {
  using Granularity = RecomputeGranularity;
  Granularity granularity = Granularity::none;
  int64_t every = 1;  // full: every k-th block is recomputed whole; the others use selective recomputation
  bool operator==(const Recompute&) const = default;
};
inline bool is_recomputed_whole(const Recompute& r, int block) {
  return r.granularity == Recompute::Granularity::full && block % r.every == 0;
}
std::string to_text(const Recompute&);  // "full in 1 block of 4, else selective"

// Consecutive blocks [first, end) of a model; the first part begins with the embedding, the last one ends with the
// final norm and the head.
struct ModelPart {
  int first = 0, end = 0;
  bool embeds = true, ends = true;
  static ModelPart whole(const Model& model) { return {0, int(model.config().num_hidden_layers), true, true}; }
};

// Runs a part of the model: from tokens, or from `in`, the output of the previous part. Returns the residual stream; at
// the end of the model, the final norm's output.
Var forward_part(Model&, Ctx&, const Batch&, const Recompute&, const ModelPart&, Var in);

// Runs embedding, all blocks and the final norm: [N] tokens -> [N, C]. The head's weights stay gathered: for backward
// if the tape records, else until release_head().
Var forward(Model&, Ctx&, const Batch&, const Recompute&);
void release_head(Model&, Ctx&);

// Returns frequencies of rotary embeddings with the model's scaling, in radians per position: [D / 2]. (rope.cc)
std::vector<double> rope_frequencies(const ModelConfig&);
// Returns cosines and sines at every position in the layout of the op Rope: [positions, D].
std::vector<float> rope_table(const ModelConfig&, int64_t positions);

}  // namespace athanor
