// Shape of the model, under the names of Hugging Face's config.json, so that "model": "path/to/config.json" works.
// Plain data plus parameter counting and config.json export; JSON reading is in config.cc, the layers are in model/.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/choices.h"
#include "base/sparse_pattern.h"

namespace athanor {

// athanor: Llama's block with every option open; a family of this program only.
// vit: a vision transformer, which classifies images; all others are language models.
enum class ModelType {
  gpt2,
  llama,
  qwen2,
  qwen3,
  mistral,
  mixtral,
  qwen2_moe,
  qwen3_moe,
  olmoe,
  dots1,
  deepseek_v2,
  deepseek_v3,
  gpt_oss,
  athanor,
  vit
};
enum class RopeType { none, linear, llama3, yarn, proportional };
// Tensors that a sublayer (attention or MLP) normalizes: its input, its output before the residual addition, or both.
enum class SublayerNorm { before, after, both };
enum class LayerType { full_attention, sliding_attention, sparse_attention };

// Scaling of RoPE to longer contexts.
struct RopeScaling {
  RopeType rope_type = RopeType::none;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;  // llama3 and yarn: context length before scaling
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // yarn [Peng et al. 2023]
  double beta_fast = 32.0;        // frequencies with more rotations in the original context are kept
  double beta_slow = 1.0;         // frequencies with fewer rotations are scaled by the full factor
  double attention_factor = 0.0;  // scales cos and sin; 0 = from `factor`, or from the next two if both are given
  double mscale = 0.0;
  double mscale_all_dim = 0.0;
  bool truncate = true;  // rounds the two bounds to whole dimensions
  // proportional: fraction of a head's pairs that are rotated, starting with the highest frequencies
  double partial_rotary_factor = 1.0;
};
// The factor applied to cos and sin: yarn's, else 1.
double attention_factor(const RopeScaling&);
// DeepSeek's factor of the scale of attention scores: the square of yarn's factor for mscale_all_dim, else 1.
double latent_score_factor(const RopeScaling&);

struct ModelConfig {
  ModelType model_type = ModelType::gpt2;
  int64_t vocab_size = 0;               // V; vit: number of classes
  int64_t hidden_size = 0;              // C
  int64_t num_hidden_layers = 0;        // L
  int64_t num_attention_heads = 0;      // H
  int64_t num_key_value_heads = 0;      // K; 0 = unset; complete() sets it to H
  int64_t head_dim = 0;                 // D; 0 = unset; complete() sets it to C / H
  int64_t intermediate_size = 0;        // F; 0 = unset; complete() sets it to 4 C, gpt2 only
  int64_t max_position_embeddings = 0;  // longest sequence; rows of gpt2's position table; vit: 1 + patches of an image
  double norm_eps = 1e-5;               // rms_norm_eps or layer_norm_epsilon
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  int64_t sliding_window = 0;          // tokens each position attends to, including itself; 0 = all before it
  bool attention_bias = false;         // bias on Q, K and V; gpt2 has biases everywhere
  bool qk_norm = false;                // RMSNorm of each head's Q and K before RoPE
  bool tie_word_embeddings = false;    // the output head is the token embedding
  double final_logit_softcapping = 0;  // logits become this * tanh(logits / this) [Gemma 2, 2024]; 0 = off
  double initializer_range = 0.02;     // standard deviation of initial weights
  // Multi-head latent attention, deepseek_v2 and deepseek_v3 only; head_dim is then qk_nope_head_dim + qk_rope_head_dim
  int64_t q_lora_rank = 0;            // width of the queries' latent vector; 0: none, one matrix computes the queries
  int64_t kv_lora_rank = 0;           // width of the latent vector of keys and values
  int64_t qk_nope_head_dim = 0;       // channels of a query or key head that RoPE does not rotate
  int64_t qk_rope_head_dim = 0;       // channels that it rotates; all key heads share them
  int64_t v_head_dim = 0;             // channels of a value head
  bool rope_interleave = false;       // RoPE rotates pairs of neighbouring channels
  int64_t num_experts = 0;            // E: experts per block; 0: a dense MLP without a router
  int64_t num_experts_per_tok = 0;    // k: experts per token (top-k)
  int64_t moe_intermediate_size = 0;  // F of an expert; 0 = unset; complete() sets it to intermediate_size
  bool norm_topk_prob = false;        // normalize the top-k weights of a token to sum 1
  RouterScore scoring_func = RouterScore::softmax;
  int64_t n_group = 1;                   // groups of consecutive experts, of equal size
  int64_t topk_group = 1;                // number of groups that a token's experts are chosen from
  double routed_scaling_factor = 1;      // factor on the weights of a token's experts
  int64_t n_shared_experts = 0;          // experts that every token passes, as one MLP whose width is the sum of theirs
  int64_t first_k_dense_replace = 0;     // number of first layers that have a dense MLP of intermediate_size instead of
                                         // experts
  std::vector<int64_t> mlp_only_layers;  // further layers with such a dense MLP, in ascending order
  int64_t decoder_sparse_step = 1;       // of the other layers only every n-th one has experts, the n-th layer first
  int64_t shared_expert_intermediate_size = 0;  // qwen2_moe: width of the shared expert, whose output is multiplied by
                                                // a sigmoid gate
  double router_aux_loss_coef = 0;              // coefficient of the load-balancing loss (ops/moe.h)
  double router_z_loss_coef = 0;                // coefficient of the router's z-loss
  double swiglu_limit = 0;                      // gpt_oss: bound of the inputs of the experts' activation
  // Options of model_type athanor; in every other family their values are fixed, but for layer_types of gpt_oss.
  Activation hidden_act = Activation::silu;  // activation of the MLP
  bool gated_mlp = true;                     // down(act(gate(x)) up(x)) instead of down(act(up(x)))
  bool mlp_bias = false;                     // bias in the MLP
  bool lm_head_bias = false;                 // bias of the output head
  bool norm_elementwise_affine = true;       // norms of the residual stream have a gain
  bool qk_norm_elementwise_affine = true;    // gain in the norms of Q and K
  bool embedding_norm = false;               // a norm between embedding and first block
  SublayerNorm sublayer_norm = SublayerNorm::before;
  double attention_multiplier = 0;     // factor of attention logits; 0: 1 / sqrt(head_dim)
  double attn_logit_softcapping = 0;   // attention logits become this * tanh(logits / this); 0 = off
  bool attention_sinks = false;        // a learned logit per head in the denominator of the softmax
  std::vector<LayerType> layer_types;  // type of each layer; empty: all use sliding_window
  int64_t sparse_block_size = 0;       // tokens of a block of sparse_attention layers
  int64_t sparse_local_blocks = 0;     // blocks of a group; queries see all earlier keys of their own group
  int64_t sparse_global_blocks = 0;    // last blocks of each group, whose keys all later queries see
  std::vector<double> resid_lambdas;   // initial factor of the residual stream at each block; empty: none
  std::vector<double> x0_lambdas;      // initial factor of the normed embedding added at each block; empty: none
  // For each block and the final norm: the block whose output is added to the residual stream there, or -1; empty:
  // none.
  std::vector<int64_t> skip_from;
  std::vector<double> skip_lambdas;  // initial factors of the outputs added by skip_from, one per entry that is not -1
  // For each layer: the embedding table, counted from 0, whose row for the token is added to V, or -1; empty: none.
  std::vector<int64_t> value_embeddings;
  std::vector<double> value_embedding_lambdas;  // initial factor of the added table row, per layer; empty: none
  std::vector<double> value_residual_lambdas;   // initial factor of the first layer's V added to V of each later layer;
                                                // empty: none
  std::vector<double> value_lambdas;            // initial factor of a layer's own V where another V is added; empty:
                                                // none
  // Number of input channels that gates read; 0: no gate. This one gates value embeddings, one gate per KV head.
  int64_t value_gate_channels = 0;
  double value_gate_scale = 2;          // a gate is this times a sigmoid
  int64_t attention_gate_channels = 0;  // gate of each attention head's output
  int64_t smear_channels = 0;           // gate of the previous token's embedding, which is added to the token's
  // Standard deviations of initial weights by patterns of tensor names in files, overriding initializer_range; 0:
  // zeros.
  std::vector<std::pair<std::string, double>> initializer_ranges;
  double mup_width = 1;  // hidden_size / Config::mup_base_width; initial weights depend on it
  // vit: images [num_channels, image_size, image_size] in square patches; for each channel a mean and a standard
  // deviation of pixels between 0 and 1 (empty: 0.5)
  int64_t image_size = 0, patch_size = 0, num_channels = 0;
  std::vector<double> image_mean, image_std;
  int64_t bos_token_id = -1;  // -1 = none
  int64_t eos_token_id = -1;  // -1 = none
};

// An empty shape with the family's fixed values set: attention_bias, qk_norm, tie_word_embeddings.
ModelConfig model_defaults(ModelType);

// Attention window of a layer: sliding_window, or 0 for full and sparse attention.
int64_t window_of(const ModelConfig&, int64_t layer);
// Pattern of a layer with sparse_attention; none for other layers.
SparsePattern sparse_pattern_of(const ModelConfig&, int64_t layer);
// Number of value embedding tables; and the tensors that a layer adds to V: a table row, or the first layer's V.
int64_t value_tables(const ModelConfig&);
bool has_value_embedding(const ModelConfig&, int64_t layer);
bool adds_first_values(const ModelConfig&, int64_t layer);
// First option that the shape uses and that only model_type athanor has, with its value; empty: none.
std::string option_of_athanor(const ModelConfig&);

// True if the model classifies images; else it is a language model.
inline bool reads_images(const ModelConfig& m) { return m.model_type == ModelType::vit; }
// Throws Error(usage) if it classifies images. `what` opens the message: a verb or a flag that needs text.
void require_language_model(const ModelConfig&, std::string_view what);
// Number of different tokens that the inputs may have.
inline int64_t input_tokens(const ModelConfig& m) { return reads_images(m) ? 2 : m.vocab_size; }
// True if blocks are those of GPT-2: LayerNorm, an MLP without a gate, biases everywhere, positions from a table.
bool has_gpt2_block(ModelType);
bool norms_all_heads(ModelType);  // qk_norm normalizes all heads together
// True if queries, keys and values are computed from latent vectors, and heads have channels without RoPE.
bool has_latent_attention(ModelType);
// True for tensors of modules that predict further tokens, which DeepSeek's files have as layers after the last one.
bool predicts_further_tokens(const ModelConfig&, const std::string& tensor);
int64_t rotary_dim(const ModelConfig&);  // channels of a query or key head that RoPE's table has angles for
int64_t value_dim(const ModelConfig&);   // channels of a value head
// True if the family can have experts; and if this layer has them. Layers without experts have a dense MLP of
// intermediate_size.
bool has_experts(ModelType);
bool has_experts(const ModelConfig&, int64_t layer);
int64_t layers_with_experts(const ModelConfig&);
// True if moe_intermediate_size, the width of an expert, is a key of the family's config.json.
bool has_expert_width(ModelType);
// True if mlp_only_layers and decoder_sparse_step are keys of the family's config.json.
bool has_dense_layer_keys(ModelType);
// True for DeepSeek's mixtures: experts may be in groups, some are shared, and the first layers may be dense.
bool has_deepseek_experts(ModelType);
// True if expert selection adds a bias to the router's scores (e_score_correction_bias).
bool has_router_bias(ModelType);
// True if a sigmoid gate scales the output of the shared expert.
bool has_shared_expert_gate(ModelType);
// True if router and experts have biases, and the experts GPT-OSS's clamped activation (ops/biased_experts.h).
bool has_biased_experts(ModelType);
bool has_output_bias(const ModelConfig&);  // bias of attention's output projection, but for GPT-2's block
// Sum of the widths of the shared experts; 0: none.
int64_t shared_width(const ModelConfig&);

// Fills num_key_value_heads, head_dim and intermediate_size where they are 0, and gpt_oss's layer_types.
void complete(ModelConfig&);

// Throws Error(..., Exit::usage) naming the key if a complete() shape cannot be built. `where` opens the message.
void validate(const ModelConfig&, std::string_view where = "model");

// The part of validate() for the options of model_type athanor (model_options.cc).
void validate_options(const ModelConfig&, std::string_view where);

// Number of trained values; a tied output head is not counted a second time.
int64_t parameter_count(const ModelConfig&);
// Number of parameters that one token uses: only the chosen experts count.
int64_t active_parameter_count(const ModelConfig&);

// preprocessor_config.json of a vit, for transformers.
std::string image_processor_json(const ModelConfig&);

// A config.json that transformers 4 and 5 can open. torch_dtype: "float32", "bfloat16" or "float16".
// quantization: JSON object for "quantization_config"; empty: none. ends: tokens that end a text, if several.
std::string hf_config_json(const ModelConfig&, const char* torch_dtype, const std::string& quantization = "",
                           std::span<const int32_t> ends = {});

// The first row of block_fields() in which they differ, with the first shape's value: "hidden_act \"relu2\"", or "" if
// there is none. Ignores initializer_ranges, which does not affect trained weights.
std::string differing_option(const ModelConfig&, const ModelConfig&);

}  // namespace athanor
