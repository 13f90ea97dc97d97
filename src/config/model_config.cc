// Functions of a model shape: missing sizes, validation, parameter counts, and its config.json.
#include "config/model_config.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/fields.h"
#include "config/require.h"

namespace athanor {
namespace {

constexpr double kMaxParameters = 1125899906842624.0;  // 2^50: byte offsets stay far from 2^63

// Limits over all layers, far beyond any published model. Every expert and listed layer has its own tensors in files,
// so a corrupt count would fill the memory with tensor names.
constexpr int64_t kMaxExperts = 1 << 18;
constexpr int64_t kMaxListedLayers = 1 << 16;

// Parameters of the latent attention of one layer.
template <class N>
N latent_parameters(const ModelConfig& m) {
  const N hidden = N(m.hidden_size), heads = N(m.num_attention_heads), latent = N(m.kv_lora_rank);
  const N queries = heads * N(m.head_dim), values = heads * N(m.v_head_dim), rank = N(m.q_lora_rank);
  const N of_queries = m.q_lora_rank > 0 ? rank * hidden + rank + rank * queries : hidden * queries;
  return of_queries + (latent + N(m.qk_rope_head_dim)) * hidden + latent +
         latent * (heads * N(m.qk_nope_head_dim) + values) + values * hidden;
}

// experts: number of experts counted per layer.
template <class N>
N count_parameters(const ModelConfig& m, int64_t experts) {
  const N vocab = N(m.vocab_size), hidden = N(m.hidden_size), ffn = N(m.intermediate_size);
  const N queries = N(m.num_attention_heads) * N(m.head_dim), keys = N(m.num_key_value_heads) * N(m.head_dim);
  const bool vit = m.model_type == ModelType::vit, gpt2 = has_gpt2_block(m.model_type);
  N embeddings = vocab * hidden;
  if (!m.tie_word_embeddings && !vit) embeddings += vocab * hidden;
  if (gpt2) embeddings += N(m.max_position_embeddings) * hidden;
  if (vit) embeddings += hidden * N(m.num_channels) * N(m.patch_size) * N(m.patch_size) + hidden + hidden;
  N block = has_latent_attention(m.model_type) ? latent_parameters<N>(m)
                                               : hidden * (queries + keys + keys) + queries * hidden;
  if (m.attention_bias) block += queries + keys + keys;
  if (has_output_bias(m)) block += hidden;
  if (m.qk_norm && m.qk_norm_elementwise_affine)
    block += norms_all_heads(m.model_type) ? queries + keys : N(m.head_dim) + N(m.head_dim);
  const N norm = gpt2 ? hidden + hidden : m.norm_elementwise_affine ? hidden : N(0);  // gpt2's LayerNorm has a bias
  if (m.embedding_norm) embeddings += norm;
  if (m.lm_head_bias) embeddings += vocab;
  embeddings += N(m.resid_lambdas.size()) + N(m.x0_lambdas.size());
  embeddings += N(std::ranges::count_if(m.skip_from, [](int64_t from) { return from >= 0; }));
  embeddings += N(value_tables(m)) * vocab * keys;
  for (int64_t l = 0; l < int64_t(std::max(m.value_embeddings.size(), m.value_residual_lambdas.size())); ++l) {
    const bool row = has_value_embedding(m, l), first = adds_first_values(m, l);
    embeddings +=
        N((row || first) && !m.value_lambdas.empty()) + N(row && !m.value_embedding_lambdas.empty()) + N(first);
    if (row) embeddings += N(m.num_key_value_heads) * N(m.value_gate_channels);
  }
  if (m.smear_channels > 0) embeddings += N(m.smear_channels) + N(1);
  block += N(m.num_attention_heads) * N(m.attention_gate_channels);
  if (m.attention_sinks) block += N(m.num_attention_heads);
  block += norm + norm;
  if (m.sublayer_norm == SublayerNorm::both) block += norm + norm;
  const N dense = (m.gated_mlp ? hidden * ffn + hidden * ffn : hidden * ffn) + ffn * hidden;
  N routed = N(m.num_experts) * hidden + N(experts) * (N(3) * hidden * N(m.moe_intermediate_size));
  if (has_biased_experts(m.model_type))
    routed += N(m.num_experts) + N(experts) * (N(2) * N(m.moe_intermediate_size) + hidden);
  const N shared_gate = has_shared_expert_gate(m.model_type) ? hidden : N(0);
  const N sparse = routed + N(3) * hidden * N(shared_width(m)) + shared_gate;
  const N with_experts = N(layers_with_experts(m));
  if (m.mlp_bias) block += (m.gated_mlp ? ffn + ffn : ffn) + hidden;
  if (gpt2) block += hidden;  // bias of the attention output projection
  const N all = N(m.num_hidden_layers);
  return embeddings + all * block + (all - with_experts) * dense + with_experts * sparse + norm;
}

void require_size(std::string_view where, std::string_view key, int64_t value) {
  require_key(value > 0, where, key, "expected a size of at least 1, got ", value);
}

void validate_heads(const ModelConfig& m, std::string_view where) {
  require_key(m.num_attention_heads % m.num_key_value_heads == 0, where, "num_key_value_heads", "num_attention_heads ",
              m.num_attention_heads, " is not a multiple of ", m.num_key_value_heads);
  const bool whole = m.hidden_size % m.num_attention_heads == 0;
  if (has_gpt2_block(m.model_type)) {
    const std::string_view family = name_of(m.model_type);
    require_key(m.num_key_value_heads == m.num_attention_heads, where, "num_key_value_heads", family,
                " has as many as num_attention_heads, ", m.num_attention_heads, ", got ", m.num_key_value_heads);
    require_key(whole && m.head_dim == m.hidden_size / m.num_attention_heads, where, "head_dim", family,
                " has hidden_size / num_attention_heads, which is ", m.hidden_size, " / ", m.num_attention_heads,
                ", got ", m.head_dim);
  } else {
    require_key(has_latent_attention(m.model_type) || m.head_dim % 2 == 0, where, "head_dim",
                "rotary embeddings need an even number, got ", m.head_dim);
  }
  require_key(whole || m.model_type != ModelType::llama, where, "hidden_size", m.hidden_size,
              " is not a multiple of num_attention_heads ", m.num_attention_heads,
              ", which llama in transformers needs");
  require_key(m.model_type != ModelType::olmoe || (whole && m.head_dim == m.hidden_size / m.num_attention_heads), where,
              "head_dim", "olmoe in transformers has hidden_size / num_attention_heads, which is ", m.hidden_size,
              " / ", m.num_attention_heads, ", got ", m.head_dim);
}

void validate_family(const ModelConfig& m, std::string_view where) {
  const ModelConfig family = model_defaults(m.model_type);
  const auto fixed = [&](std::string_view key, bool value, bool expected) {
    require_key(value == expected, where, key, name_of(m.model_type), " has ", expected ? "true" : "false", ", got ",
                value ? "true" : "false", "; choose another model_type");
  };
  if (m.model_type == ModelType::athanor) return;
  fixed("attention_bias", m.attention_bias, family.attention_bias);
  fixed("qk_norm", m.qk_norm, family.qk_norm);
  const bool windows = !has_gpt2_block(m.model_type) && m.model_type != ModelType::llama &&
                       m.model_type != ModelType::olmoe && !has_latent_attention(m.model_type);
  require_key(windows || m.sliding_window == 0, where, "sliding_window", name_of(m.model_type), " has none, got ",
              m.sliding_window,
              "; mistral, mixtral, qwen2, qwen3, qwen2_moe, qwen3_moe, dots1, gpt_oss and athanor have one");
  if (!has_gpt2_block(m.model_type)) return;
  require_key(m.rope_theta == family.rope_theta, where, "rope_theta", name_of(m.model_type),
              " has no rotary embeddings; leave it out");
  require_key(m.rope_scaling.rope_type == RopeType::none, where, "rope_scaling", name_of(m.model_type),
              " has no rotary embeddings; leave it out");
}

// Keys of experts that must keep these values in a family that lacks the feature.
void require_unused(const ModelConfig& m, std::string_view where, const char* why,
                    std::initializer_list<std::pair<const char*, std::pair<double, double>>> keys) {
  for (const auto& [key, values] : keys)
    require_key(values.first == values.second, where, key, name_of(m.model_type), " has ", why, ", got ", values.first,
                "; leave it out");
}

// The keys that say which layers have experts, except first_k_dense_replace.
void validate_dense_layers(const ModelConfig& m, std::string_view where) {
  if (!has_dense_layer_keys(m.model_type)) {
    const char* why = has_experts(m.model_type) ? "no dense layers between others" : "no experts";
    require_key(m.mlp_only_layers.empty(), where, "mlp_only_layers", name_of(m.model_type), " has ", why, ", got ",
                m.mlp_only_layers.size(), m.mlp_only_layers.size() == 1 ? " layer" : " layers", "; leave it out");
    return require_unused(m, where, why, {{"decoder_sparse_step", {double(m.decoder_sparse_step), 1}}});
  }
  for (const int64_t layer : m.mlp_only_layers)
    require_key(layer >= 0 && layer < m.num_hidden_layers, where, "mlp_only_layers",
                "expected layers of 0 to num_hidden_layers - 1, ", m.num_hidden_layers - 1, ", got ", layer);
  require_key(layers_with_experts(m) > 0, where,
              m.decoder_sparse_step > m.num_hidden_layers ? "decoder_sparse_step" : "mlp_only_layers",
              "with decoder_sparse_step ", m.decoder_sparse_step, " none of the ", m.num_hidden_layers,
              " layers of num_hidden_layers has experts; let one have some, or choose a model_type without experts");
}

void validate_routing(const ModelConfig& m, std::string_view where) {
  const RouterScore score = model_defaults(m.model_type).scoring_func;
  require_key(m.scoring_func == score, where, "scoring_func", name_of(m.model_type), " has ", name_of(score), ", got ",
              name_of(m.scoring_func), "; choose another model_type");
  validate_dense_layers(m, where);
  const bool gated = has_shared_expert_gate(m.model_type);
  if (!gated)
    require_unused(m, where, "none",
                   {{"shared_expert_intermediate_size", {double(m.shared_expert_intermediate_size), 0}}});
  require_key(!gated || m.shared_expert_intermediate_size > 0, where, "shared_expert_intermediate_size",
              "is required for ", name_of(m.model_type));
  if (!has_deepseek_experts(m.model_type))
    return require_unused(m, where, "none",
                          {{"n_group", {double(m.n_group), 1}},
                           {"topk_group", {double(m.topk_group), 1}},
                           {"routed_scaling_factor", {m.routed_scaling_factor, 1}},
                           {"n_shared_experts", {double(m.n_shared_experts), 0}},
                           {"first_k_dense_replace", {double(m.first_k_dense_replace), 0}}});
  require_key(m.num_experts % m.n_group == 0 && (m.n_group == 1 || m.num_experts / m.n_group >= 2), where, "n_group",
              m.num_experts, " experts (num_experts) in ", m.n_group,
              " groups; expected 1, or a divisor that leaves two experts or more in each group");
  const int64_t each = m.num_experts / m.n_group;
  require_key(m.topk_group <= m.n_group && m.topk_group * each >= m.num_experts_per_tok, where, "topk_group",
              "expected at most n_group ", m.n_group, ", and enough groups of ", each, " experts for the ",
              m.num_experts_per_tok, " of num_experts_per_tok, got ", m.topk_group);
  require_key(m.first_k_dense_replace < m.num_hidden_layers, where, "first_k_dense_replace",
              "expected fewer than num_hidden_layers ", m.num_hidden_layers, ", got ", m.first_k_dense_replace);
}

void validate_experts(const ModelConfig& m, std::string_view where) {
  if (!has_experts(m.model_type)) {
    require_key(m.num_experts == 0, where, "num_experts", name_of(m.model_type), " has no experts, got ", m.num_experts,
                "; mixtral, qwen2_moe, qwen3_moe, olmoe, dots1, deepseek_v2, deepseek_v3 and gpt_oss have some");
    require_unused(m, where, "no experts",
                   {{"num_experts_per_tok", {double(m.num_experts_per_tok), 0}},
                    {"moe_intermediate_size", {double(m.moe_intermediate_size), 0}},
                    {"router_aux_loss_coef", {m.router_aux_loss_coef, 0}},
                    {"router_z_loss_coef", {m.router_z_loss_coef, 0}}});
    require_key(!m.norm_topk_prob, where, "norm_topk_prob", name_of(m.model_type), " has no experts, got true");
    return validate_routing(m, where);
  }
  require_key(m.num_experts > 0, where, "num_experts", "is required for ", name_of(m.model_type),
              " (also accepted as num_local_experts or n_routed_experts)");
  require_key(m.num_experts <= kMaxExperts / m.num_hidden_layers, where, "num_experts", m.num_experts, " in each of ",
              m.num_hidden_layers, " layers; at most ", kMaxExperts, " in all layers are read");
  require_key(m.num_experts_per_tok > 0 && m.num_experts_per_tok <= m.num_experts, where, "num_experts_per_tok",
              "expected 1 to num_experts, ", m.num_experts, ", got ", m.num_experts_per_tok);
  require_key(m.model_type != ModelType::mixtral || m.norm_topk_prob, where, "norm_topk_prob",
              "mixtral has true, got false; choose another model_type");
  require_key(has_expert_width(m.model_type) || m.moe_intermediate_size == m.intermediate_size, where,
              "moe_intermediate_size", name_of(m.model_type), " has experts of intermediate_size ", m.intermediate_size,
              ", got ", m.moe_intermediate_size, "; leave it out");
  require_key(m.model_type != ModelType::olmoe || m.num_key_value_heads == m.num_attention_heads, where,
              "num_key_value_heads", "olmoe has as many as num_attention_heads, ", m.num_attention_heads, ", got ",
              m.num_key_value_heads);
  validate_routing(m, where);
}

void validate_scaling(const ModelConfig& m, std::string_view where) {
  const RopeScaling& r = m.rope_scaling;
  if (r.rope_type != RopeType::none) {
    require_key(r.factor >= 1.0, where, "rope_scaling.factor", "expected at least 1, got ", r.factor);
  }
  require_key(r.rope_type == RopeType::proportional || r.partial_rotary_factor == 1.0, where,
              "rope_scaling.partial_rotary_factor", "has a meaning only with rope_type proportional, got ",
              r.partial_rotary_factor);
  if (r.rope_type != RopeType::llama3 && r.rope_type != RopeType::yarn) return;
  require_key(r.original_max_position_embeddings > 0, where, "rope_scaling.original_max_position_embeddings",
              name_of(r.rope_type), " needs the context length before scaling");
  if (r.rope_type == RopeType::llama3) {
    require_key(r.low_freq_factor > 0.0 && r.high_freq_factor > r.low_freq_factor, where,
                "rope_scaling.high_freq_factor", "expected more than low_freq_factor ", r.low_freq_factor, ", got ",
                r.high_freq_factor);
  } else {
    require_key(r.beta_fast >= r.beta_slow, where, "rope_scaling.beta_fast", "expected at least beta_slow ",
                r.beta_slow, ", got ", r.beta_fast);
  }
}

Json optional_id(int64_t id) { return id < 0 ? Json() : Json::of(id); }

Json scaling_json(const ModelConfig& m, bool with_theta) {
  const RopeScaling& r = m.rope_scaling;
  Json out = Json::object();
  out.set("rope_type", Json::of(r.rope_type == RopeType::none ? std::string_view("default") : name_of(r.rope_type)));
  if (with_theta) out.set("rope_theta", Json::of(m.rope_theta));
  if (r.rope_type == RopeType::none) return out;
  out.set("factor", Json::of(r.factor));
  if (r.rope_type == RopeType::linear) return out;
  out.set("original_max_position_embeddings", Json::of(r.original_max_position_embeddings));
  if (r.rope_type == RopeType::llama3) {
    out.set("low_freq_factor", Json::of(r.low_freq_factor));
    out.set("high_freq_factor", Json::of(r.high_freq_factor));
    return out;
  }
  out.set("beta_fast", Json::of(r.beta_fast));
  out.set("beta_slow", Json::of(r.beta_slow));
  if (r.attention_factor > 0) out.set("attention_factor", Json::of(r.attention_factor));
  if (r.mscale > 0) out.set("mscale", Json::of(r.mscale));
  if (r.mscale_all_dim > 0) out.set("mscale_all_dim", Json::of(r.mscale_all_dim));
  if (!r.truncate) out.set("truncate", Json::of(false));
  return out;
}

void add_gpt2_keys(const ModelConfig& m, Json& out) {
  out.set("n_positions", Json::of(m.max_position_embeddings));
  out.set("n_embd", Json::of(m.hidden_size));
  out.set("n_layer", Json::of(m.num_hidden_layers));
  out.set("n_head", Json::of(m.num_attention_heads));
  out.set("n_inner", m.intermediate_size == 4 * m.hidden_size ? Json() : Json::of(m.intermediate_size));
  out.set("activation_function", Json::of("gelu_new"));
  out.set("layer_norm_epsilon", Json::of(m.norm_eps));
  for (auto key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) out.set(key, Json::of(0.0));
}

void add_deepseek_experts(const ModelConfig& m, Json& out) {
  out.set("n_routed_experts", Json::of(m.num_experts));
  out.set("n_shared_experts", Json::of(m.n_shared_experts));  // transformers multiplies by it: null would be an error
  out.set("num_experts_per_tok", Json::of(m.num_experts_per_tok));
  out.set("moe_intermediate_size", Json::of(m.moe_intermediate_size));
  out.set("first_k_dense_replace", Json::of(m.first_k_dense_replace));
  out.set("n_group", Json::of(m.n_group));
  out.set("topk_group", Json::of(m.topk_group));
  out.set("norm_topk_prob", Json::of(m.norm_topk_prob));
  out.set("routed_scaling_factor", Json::of(m.routed_scaling_factor));
  out.set("scoring_func", Json::of(name_of(m.scoring_func)));
  if (m.router_aux_loss_coef > 0) out.set("router_aux_loss_coef", Json::of(m.router_aux_loss_coef));
  if (m.router_z_loss_coef > 0) out.set("router_z_loss_coef", Json::of(m.router_z_loss_coef));
  out.set("output_router_logits", Json::of(false));
}

void add_expert_keys(const ModelConfig& m, Json& out) {
  if (has_deepseek_experts(m.model_type)) return add_deepseek_experts(m, out);
  const bool local = m.model_type == ModelType::mixtral || m.model_type == ModelType::gpt_oss;
  out.set(local ? "num_local_experts" : "num_experts", Json::of(m.num_experts));
  out.set("num_experts_per_tok", Json::of(m.num_experts_per_tok));
  if (!local) out.set("norm_topk_prob", Json::of(m.norm_topk_prob));
  out.set("router_aux_loss_coef", Json::of(m.router_aux_loss_coef));
  if (m.router_z_loss_coef > 0) out.set("router_z_loss_coef", Json::of(m.router_z_loss_coef));
  out.set("output_router_logits", Json::of(false));
  if (!has_dense_layer_keys(m.model_type)) return;
  out.set("moe_intermediate_size", Json::of(m.moe_intermediate_size));
  if (has_shared_expert_gate(m.model_type))
    out.set("shared_expert_intermediate_size", Json::of(m.shared_expert_intermediate_size));
  out.set("decoder_sparse_step", Json::of(m.decoder_sparse_step));
  out.set("mlp_only_layers", m.mlp_only_layers.empty() ? Json::array() : write_integers(m.mlp_only_layers));
}

void add_llama_keys(const ModelConfig& m, Json& out) {
  out.set("hidden_size", Json::of(m.hidden_size));
  out.set("intermediate_size", Json::of(m.intermediate_size));
  out.set("num_hidden_layers", Json::of(m.num_hidden_layers));
  out.set("num_attention_heads", Json::of(m.num_attention_heads));
  out.set("num_key_value_heads", Json::of(m.num_key_value_heads));
  out.set("head_dim", Json::of(m.head_dim));
  out.set("hidden_act", Json::of("silu"));
  out.set("max_position_embeddings", Json::of(m.max_position_embeddings));
  out.set("rms_norm_eps", Json::of(m.norm_eps));
  // transformers 4 reads rope_theta and rope_scaling, 5 reads rope_parameters.
  out.set("rope_theta", Json::of(m.rope_theta));
  out.set("rope_scaling", m.rope_scaling.rope_type == RopeType::none ? Json() : scaling_json(m, false));
  out.set("rope_parameters", scaling_json(m, true));
  out.set("attention_dropout", Json::of(0.0));
  const ModelType type = m.model_type;
  const bool qwen2 = type == ModelType::qwen2 || type == ModelType::qwen2_moe;
  const bool qwen = qwen2 || type == ModelType::qwen3 || type == ModelType::qwen3_moe;
  const bool dots = type == ModelType::dots1;
  if (!qwen2 && type != ModelType::mistral && type != ModelType::mixtral)
    out.set("attention_bias", Json::of(m.attention_bias));
  if (has_experts(type)) add_expert_keys(m, out);
  if (type == ModelType::llama) out.set("mlp_bias", Json::of(false));
  if (type == ModelType::llama || type == ModelType::olmoe) return;
  if (has_latent_attention(type)) return add_latent_keys(m, out);
  out.set("sliding_window", m.sliding_window > 0 ? Json::of(m.sliding_window) : Json());
  if (type == ModelType::gpt_oss) return add_gpt_oss_keys(m, out);
  if (!qwen && !dots) return;
  if (qwen) out.set("use_sliding_window", Json::of(m.sliding_window > 0));
  out.set("max_window_layers", Json::of(m.sliding_window > 0 ? int64_t(0) : m.num_hidden_layers));
  if (type != ModelType::qwen2_moe || m.sliding_window == 0) return;
  Json types = Json::array();  // versions of transformers differ in the layers that have the window without this list
  types.items.assign(size_t(m.num_hidden_layers), Json::of("sliding_attention"));
  out.set("layer_types", std::move(types));
}

std::string_view architecture(ModelType type) {
  switch (type) {
    case ModelType::gpt2:
      return "GPT2LMHeadModel";
    case ModelType::llama:
      return "LlamaForCausalLM";
    case ModelType::qwen2:
      return "Qwen2ForCausalLM";
    case ModelType::qwen3:
      return "Qwen3ForCausalLM";
    case ModelType::mistral:
      return "MistralForCausalLM";
    case ModelType::mixtral:
      return "MixtralForCausalLM";
    case ModelType::qwen2_moe:
      return "Qwen2MoeForCausalLM";
    case ModelType::qwen3_moe:
      return "Qwen3MoeForCausalLM";
    case ModelType::olmoe:
      return "OlmoeForCausalLM";
    case ModelType::dots1:
      return "Dots1ForCausalLM";
    case ModelType::deepseek_v2:
      return "DeepseekV2ForCausalLM";
    case ModelType::deepseek_v3:
      return "DeepseekV3ForCausalLM";
    case ModelType::gpt_oss:
      return "GptOssForCausalLM";
    case ModelType::athanor:
      return "AthanorForCausalLM";
    case ModelType::vit:
      return "ViTForImageClassification";
  }
  return "";
}

}  // namespace

void require_language_model(const ModelConfig& m, std::string_view what) {
  require(!reads_images(m), what, ": needs a language model; one of model_type ", name_of(m.model_type),
          " classifies images: `athanor eval` evaluates it");
}
bool has_gpt2_block(ModelType type) { return type == ModelType::gpt2 || type == ModelType::vit; }
bool norms_all_heads(ModelType type) { return type == ModelType::olmoe; }

bool has_experts(ModelType type) {
  return type == ModelType::mixtral || type == ModelType::qwen2_moe || type == ModelType::qwen3_moe ||
         type == ModelType::olmoe || has_deepseek_experts(type) || type == ModelType::gpt_oss;
}
bool has_experts(const ModelConfig& m, int64_t layer) {
  return has_experts(m.model_type) && layer >= m.first_k_dense_replace && (layer + 1) % m.decoder_sparse_step == 0 &&
         !std::ranges::binary_search(m.mlp_only_layers, layer);
}
int64_t layers_with_experts(const ModelConfig& m) {
  int64_t layers = 0;
  for (int64_t l = 0; l < m.num_hidden_layers; ++l) layers += has_experts(m, l);
  return layers;
}
bool has_expert_width(ModelType type) {
  return type == ModelType::qwen2_moe || type == ModelType::qwen3_moe || has_deepseek_experts(type);
}
bool has_dense_layer_keys(ModelType type) { return type == ModelType::qwen2_moe || type == ModelType::qwen3_moe; }
bool has_shared_expert_gate(ModelType type) { return type == ModelType::qwen2_moe; }
bool has_deepseek_experts(ModelType type) { return has_router_bias(type) || type == ModelType::deepseek_v2; }
bool has_router_bias(ModelType type) { return type == ModelType::dots1 || type == ModelType::deepseek_v3; }
int64_t shared_width(const ModelConfig& m) {  // a family has one of these keys
  return m.n_shared_experts * m.moe_intermediate_size + m.shared_expert_intermediate_size;
}

ModelConfig model_defaults(ModelType type) {
  ModelConfig m;
  m.model_type = type;
  const bool gpt_oss = type == ModelType::gpt_oss;
  m.attention_bias = has_gpt2_block(type) || type == ModelType::qwen2 || type == ModelType::qwen2_moe || gpt_oss;
  m.attention_sinks = gpt_oss;
  m.swiglu_limit = gpt_oss ? 7 : 0;
  m.qk_norm =
      type == ModelType::qwen3 || type == ModelType::qwen3_moe || type == ModelType::olmoe || type == ModelType::dots1;
  m.norm_topk_prob = type == ModelType::mixtral || gpt_oss;
  if (has_gpt2_block(type)) m.hidden_act = Activation::gelu, m.gated_mlp = false, m.mlp_bias = true;
  if (type == ModelType::vit)
    m.hidden_act = Activation::gelu_erf, m.lm_head_bias = true, m.norm_eps = 1e-12, m.num_channels = 3;
  if (has_router_bias(type)) m.scoring_func = RouterScore::sigmoid;
  m.rope_interleave = has_latent_attention(type);
  // defaults of transformers
  if (has_experts(type) && !has_deepseek_experts(type) && !gpt_oss)
    m.router_aux_loss_coef = type == ModelType::olmoe ? 0.01 : 0.001;
  m.tie_word_embeddings = type == ModelType::gpt2;
  return m;
}

void complete(ModelConfig& m) {
  if (m.num_key_value_heads == 0) m.num_key_value_heads = m.num_attention_heads;
  if (m.head_dim == 0 && has_latent_attention(m.model_type)) m.head_dim = m.qk_nope_head_dim + m.qk_rope_head_dim;
  if (m.head_dim == 0 && m.num_attention_heads > 0 && m.hidden_size % m.num_attention_heads == 0) {
    m.head_dim = m.hidden_size / m.num_attention_heads;
  }
  if (m.intermediate_size == 0 && has_gpt2_block(m.model_type)) m.intermediate_size = 4 * m.hidden_size;
  for (auto* lambdas :
       {&m.resid_lambdas, &m.x0_lambdas, &m.value_embedding_lambdas, &m.value_residual_lambdas, &m.value_lambdas})
    if (lambdas->size() == 1 && m.num_hidden_layers > 0 && m.num_hidden_layers < kMaxListedLayers)
      lambdas->resize(size_t(m.num_hidden_layers), lambdas->front());
  if (m.skip_lambdas.size() == 1 && !m.skip_from.empty())
    m.skip_lambdas.resize(m.skip_from.size(), m.skip_lambdas.front());
  complete_gpt_oss(m);
  if (!has_experts(m.model_type)) return;
  std::ranges::sort(m.mlp_only_layers);
  m.mlp_only_layers.erase(std::unique(m.mlp_only_layers.begin(), m.mlp_only_layers.end()), m.mlp_only_layers.end());
  if (m.moe_intermediate_size == 0 && !has_expert_width(m.model_type)) m.moe_intermediate_size = m.intermediate_size;
  // Nothing has intermediate_size if there are no dense layers.
  if (m.intermediate_size == 0 && layers_with_experts(m) == m.num_hidden_layers)
    m.intermediate_size = m.moe_intermediate_size;
}

void validate(const ModelConfig& m, std::string_view where) {
  require_size(where, "vocab_size", m.vocab_size);
  require_size(where, "hidden_size", m.hidden_size);
  require_size(where, "num_hidden_layers", m.num_hidden_layers);
  require_size(where, "num_attention_heads", m.num_attention_heads);
  require_size(where, "num_key_value_heads", m.num_key_value_heads);
  require_key(m.head_dim > 0, where, "head_dim", "hidden_size ", m.hidden_size,
              " is not a multiple of num_attention_heads ", m.num_attention_heads,
              "; change one of them or give head_dim");
  const bool dense = !has_expert_width(m.model_type) || layers_with_experts(m) < m.num_hidden_layers;
  require_key(m.intermediate_size > 0, where, dense ? "intermediate_size" : "moe_intermediate_size", "is required for ",
              name_of(m.model_type));
  require_key(!has_expert_width(m.model_type) || m.moe_intermediate_size > 0, where, "moe_intermediate_size",
              "is required for ", name_of(m.model_type));
  require_size(where, "max_position_embeddings", m.max_position_embeddings);
  require_key(m.norm_eps > 0.0, where, "norm_eps", "expected more than 0, got ", m.norm_eps);
  require_key(m.rope_theta > 1.0, where, "rope_theta", "expected more than 1, got ", m.rope_theta);
  require_key(m.initializer_range > 0.0, where, "initializer_range", "expected more than 0, got ", m.initializer_range);
  validate_latent(m, where);
  validate_gpt_oss(m, where);
  validate_heads(m, where);
  validate_family(m, where);
  validate_experts(m, where);
  validate_scaling(m, where);
  validate_options(m, where);
  validate_images(m, where);
  require_key(m.sliding_window >= 0, where, "sliding_window", "expected 0 or more, got ", m.sliding_window);
  require_key(m.bos_token_id < m.vocab_size, where, "bos_token_id", m.bos_token_id, " is not below vocab_size ",
              m.vocab_size);
  require_key(m.eos_token_id < m.vocab_size, where, "eos_token_id", m.eos_token_id, " is not below vocab_size ",
              m.vocab_size);
  const double parameters = count_parameters<double>(m, m.num_experts);
  require_key(parameters <= kMaxParameters, where, "hidden_size", "these sizes make ", parameters,
              " parameters, more than the limit of ", kMaxParameters, "; reduce one of the sizes");
}

namespace {

// YaRN's factor of attention [Peng et al. 2023, eq. 22]; weight: mscale or mscale_all_dim of DeepSeek's form.
double yarn_factor(const RopeScaling& r, double weight) {
  return r.factor <= 1 ? 1 : 0.1 * weight * std::log(r.factor) + 1;
}

}  // namespace

double attention_factor(const RopeScaling& r) {
  if (r.rope_type != RopeType::yarn) return 1;
  if (r.attention_factor > 0) return r.attention_factor;
  // The quotient is DeepSeek's, as implemented in transformers.
  return r.mscale > 0 && r.mscale_all_dim > 0 ? yarn_factor(r, r.mscale) / yarn_factor(r, r.mscale_all_dim)
                                              : yarn_factor(r, 1);
}

double latent_score_factor(const RopeScaling& r) {
  if (r.rope_type != RopeType::yarn) return 1;
  const double factor = yarn_factor(r, r.mscale_all_dim);
  return factor * factor;
}

int64_t parameter_count(const ModelConfig& m) { return count_parameters<int64_t>(m, m.num_experts); }
int64_t active_parameter_count(const ModelConfig& m) { return count_parameters<int64_t>(m, m.num_experts_per_tok); }

std::string hf_config_json(const ModelConfig& m, const char* torch_dtype, const std::string& quantization,
                           std::span<const int32_t> ends) {
  Json out = Json::object(), architectures = Json::array(), all_ends = Json::array();
  for (const int32_t id : ends) all_ends.items.push_back(Json::of(int64_t{id}));
  architectures.items.push_back(Json::of(architecture(m.model_type)));
  if (m.model_type == ModelType::athanor) {  // only this program reads the family: write its own options
    out = write_model(m);
    out.set("architectures", std::move(architectures));
    if (ends.size() > 1) out.set("eos_token_id", std::move(all_ends));
    out.set("torch_dtype", Json::of(torch_dtype));
    out.set("dtype", Json::of(torch_dtype));
    return to_pretty(out);
  }
  out.set("architectures", std::move(architectures));
  out.set("model_type", Json::of(name_of(m.model_type)));
  out.set("vocab_size", Json::of(m.vocab_size));
  if (m.model_type == ModelType::gpt2) {
    add_gpt2_keys(m, out);
  } else if (m.model_type == ModelType::vit) {
    add_vit_keys(m, out);
  } else {
    add_llama_keys(m, out);
  }
  // transformers ignores this key in these families; `athanor export` refuses it.
  if (m.final_logit_softcapping > 0) out.set("final_logit_softcapping", Json::of(m.final_logit_softcapping));
  out.set("initializer_range", Json::of(m.initializer_range));
  out.set("tie_word_embeddings", Json::of(m.tie_word_embeddings));
  out.set("bos_token_id", optional_id(m.bos_token_id));
  out.set("eos_token_id", ends.size() > 1 ? std::move(all_ends) : optional_id(m.eos_token_id));
  out.set("torch_dtype", Json::of(torch_dtype));  // transformers 4
  out.set("dtype", Json::of(torch_dtype));        // transformers 5
  if (!quantization.empty()) out.set("quantization_config", parse_json(quantization, "quantization_config"));
  return to_pretty(out);
}

}  // namespace athanor
