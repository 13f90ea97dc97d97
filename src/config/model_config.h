// Shape of the model, under the names of Hugging Face's config.json, so that "model": "path/to/config.json" works.
// Plain data plus parameter counting and config.json export; JSON reading is in config.cc, the layers are in model/.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/choices.h"

namespace athanor {

// athanor: Llama's block with every option of it free; no other program has the family.
enum class ModelType { gpt2, llama, qwen2, qwen3, mistral, mixtral, qwen3_moe, olmoe, dots1, athanor };
enum class RopeType { none, linear, llama3, yarn, proportional };
enum class LayerType { full_attention, sliding_attention };

// Stretching of rotary embeddings to longer contexts.
struct RopeScaling {
  RopeType rope_type = RopeType::none;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;  // llama3 and yarn: context before stretching
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // yarn [Peng et al. 2023]
  double beta_fast = 32.0;        // frequencies with more turns in the original context are kept
  double beta_slow = 1.0;         // those with fewer are stretched in full
  double attention_factor = 0.0;  // scales cos and sin; 0 = by `factor`, or by the next two where both are given
  double mscale = 0.0;
  double mscale_all_dim = 0.0;
  bool truncate = true;  // the two bounds are whole dimensions
  // proportional: share of a head's pairs that turn, those of the highest frequencies
  double partial_rotary_factor = 1.0;
};
// What cos and sin are multiplied with: yarn's, else 1.
double attention_factor(const RopeScaling&);

struct ModelConfig {
  ModelType model_type = ModelType::gpt2;
  int64_t vocab_size = 0;               // V
  int64_t hidden_size = 0;              // C
  int64_t num_hidden_layers = 0;        // L
  int64_t num_attention_heads = 0;      // H
  int64_t num_key_value_heads = 0;      // K; 0 until complete(): H
  int64_t head_dim = 0;                 // D; 0 until complete(): C / H
  int64_t intermediate_size = 0;        // F; 0 until complete(): 4 C, gpt2 only
  int64_t max_position_embeddings = 0;  // longest sequence; rows of gpt2's position table
  double norm_eps = 1e-5;               // rms_norm_eps or layer_norm_epsilon
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  int64_t sliding_window = 0;          // tokens each position sees, itself included; 0 = all before it
  bool attention_bias = false;         // bias on Q, K and V; gpt2 has biases everywhere
  bool qk_norm = false;                // RMSNorm of each head's Q and K before RoPE
  bool tie_word_embeddings = false;    // the output head is the token embedding
  double final_logit_softcapping = 0;  // logits become this * tanh(logits / this) [Gemma 2, 2024]; 0 = off
  double initializer_range = 0.02;     // standard deviation of initial weights
  int64_t num_experts = 0;             // E: expert MLPs in a block; 0: a dense MLP without a router
  int64_t num_experts_per_tok = 0;     // k: experts that a token is routed to
  int64_t moe_intermediate_size = 0;   // F of an expert; 0 until complete(): intermediate_size
  bool norm_topk_prob = false;         // the weights of a token's experts are divided by their sum
  RouterScore scoring_func = RouterScore::softmax;
  int64_t n_group = 1;                // equal groups of neighbouring experts
  int64_t topk_group = 1;             // of these, those that a token's experts are chosen from
  double routed_scaling_factor = 1;   // of the weights of a token's experts
  int64_t n_shared_experts = 0;       // that every token passes: one feed-forward layer of so many widths
  int64_t first_k_dense_replace = 0;  // first layers, which have a feed-forward layer of intermediate_size instead
  double router_aux_loss_coef = 0;    // factor of the balance loss (ops/moe.h)
  double router_z_loss_coef = 0;      // factor of the router's z-loss
  // Options of model_type athanor; any other family has one value of each.
  Activation hidden_act = Activation::silu;  // of feed-forward layers
  bool gated_mlp = true;                     // down(act(gate(x)) up(x)) instead of down(act(up(x)))
  bool mlp_bias = false;                     // bias in feed-forward layers
  bool lm_head_bias = false;                 // bias of the output head
  bool norm_elementwise_affine = true;       // norms of the residual stream have a gain
  bool qk_norm_elementwise_affine = true;    // so have those of queries and keys
  bool embedding_norm = false;               // a norm between embedding and first block
  double attention_multiplier = 0;           // factor of attention scores; 0: 1 / sqrt(head_dim)
  double attn_logit_softcapping = 0;         // attention scores become this * tanh(scores / this); 0 = off
  bool attention_sinks = false;              // a trained score of each head in the denominator of its softmax
  std::vector<LayerType> layer_types;        // of each layer; empty: all have sliding_window
  std::vector<double> resid_lambdas;         // initial factors of the stream at each block; empty: none
  std::vector<double> x0_lambdas;            // initial factors of the normed embedding added there; empty: none
  // For each block and the final norm, the block whose output is added to the stream there, or -1; empty: none.
  std::vector<int64_t> skip_from;
  std::vector<double> skip_lambdas;  // initial factors of what is added, for as many
  // For each layer the table, from 0, whose row of the token is added to the values of attention, or -1; empty: none.
  std::vector<int64_t> value_embeddings;
  std::vector<double> value_embedding_lambdas;  // initial factors of what is added, for each layer; empty: none
  std::vector<double> value_residual_lambdas;   // of the first layer's values, added to those of others; empty: none
  std::vector<double> value_lambdas;            // of a layer's own values where others are added; empty: none
  // Input channels that gates read, 0: no gate. Of value embeddings, for each head of keys and values.
  int64_t value_gate_channels = 0;
  double value_gate_scale = 2;          // a gate is this times a sigmoid
  int64_t attention_gate_channels = 0;  // of each head of attention
  int64_t smear_channels = 0;           // of the previous token's embedding, which is added to the token's
  // Standard deviations of initial weights by patterns of names in files, in place of initializer_range; 0: zeros.
  std::vector<std::pair<std::string, double>> initializer_ranges;
  double mup_width = 1;       // hidden_size / Config::mup_base_width; initial weights follow it
  int64_t bos_token_id = -1;  // -1 = none
  int64_t eos_token_id = -1;  // -1 = none
};

// An empty shape with the family's own values set: attention_bias, qk_norm, tie_word_embeddings.
ModelConfig model_defaults(ModelType);

// The attention window of a layer: sliding_window, or 0.
int64_t window_of(const ModelConfig&, int64_t layer);
// Tables of value_embeddings, and what a layer adds to its values: a row of one, the first layer's.
int64_t value_tables(const ModelConfig&);
bool has_value_embedding(const ModelConfig&, int64_t layer);
bool adds_first_values(const ModelConfig&, int64_t layer);
// The first option, with its value, that no family of other programs has; empty: none.
std::string option_of_athanor(const ModelConfig&);

// Whether the family has experts, and whether a layer of it has.
bool has_experts(ModelType);
bool has_experts(const ModelConfig&, int64_t layer);
// Whether a bias is added to the scores of experts for the choice alone (e_score_correction_bias).
bool has_router_bias(ModelType);
// Width of the shared experts together.
int64_t shared_width(const ModelConfig&);

// Fills num_key_value_heads, head_dim and intermediate_size where they are 0.
void complete(ModelConfig&);

// Throws Error(..., Exit::usage) naming the key if a complete() shape cannot be built. `where` opens the message.
void validate(const ModelConfig&, std::string_view where = "model");

// The part of validate() that is about options of athanor. (model_options.cc)
void validate_options(const ModelConfig&, std::string_view where);

// Trained values, a tied head counted once.
int64_t parameter_count(const ModelConfig&);
// Parameters that a token uses: of experts, the chosen ones alone.
int64_t active_parameter_count(const ModelConfig&);

// A config.json that transformers 4 and 5 open. torch_dtype: "float32", "bfloat16" or "float16".
// quantization: "quantization_config", a JSON object; empty: none.
std::string hf_config_json(const ModelConfig&, const char* torch_dtype, const std::string& quantization = "");

}  // namespace athanor
