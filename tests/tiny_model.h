// Models of a few thousand weights, for tests of whole steps.
#pragma once
#include "config/model_config.h"

namespace athanor::testing {

struct TinySizes {
  int64_t vocab, hidden, layers = 2, heads;
  int64_t kv_heads = heads;  // fewer for GQA
  int64_t intermediate, positions;
};

inline ModelConfig tiny_model(ModelType type, const TinySizes& s) {
  ModelConfig m = model_defaults(type);
  m.vocab_size = s.vocab;
  m.hidden_size = s.hidden;
  m.num_hidden_layers = s.layers;
  m.num_attention_heads = s.heads;
  m.num_key_value_heads = type == ModelType::gpt2 ? s.heads : s.kv_heads;
  m.head_dim = s.hidden / s.heads;
  m.intermediate_size = s.intermediate;
  m.max_position_embeddings = s.positions;
  if (type == ModelType::athanor) {
    m.hidden_act = Activation::relu2, m.gated_mlp = false, m.mlp_bias = m.attention_bias = m.lm_head_bias = true;
    m.qk_norm = m.embedding_norm = true, m.norm_elementwise_affine = m.qk_norm_elementwise_affine = false;
    m.sublayer_norm = SublayerNorm::both;
    m.attention_multiplier = 0.4, m.attn_logit_softcapping = 1.5, m.attention_sinks = true;
    m.sliding_window = 4;
    m.sparse_block_size = 2, m.sparse_local_blocks = 2, m.sparse_global_blocks = 1;
    for (int64_t l = 0; l < s.layers; ++l) {
      using enum LayerType;
      m.layer_types.push_back(l % 3 == 0 ? sliding_attention : l % 3 == 1 ? sparse_attention : full_attention);
      m.skip_from.push_back(l == 0 ? -1 : 0), m.skip_lambdas.push_back(0.1);
      m.resid_lambdas.push_back(1.1 - 0.05 * double(l)), m.x0_lambdas.push_back(0.2 - 0.05 * double(l));
    }
    m.skip_from.push_back(0), m.skip_lambdas.push_back(-0.2);
    m.value_embeddings.assign(size_t(s.layers), 0), m.value_embeddings.front() = s.layers > 2 ? -1 : 0;
    m.value_embedding_lambdas.assign(size_t(s.layers), 0.7), m.value_lambdas.assign(size_t(s.layers), 0.8);
    m.value_residual_lambdas.assign(size_t(s.layers), 0.4);
    m.value_gate_channels = 3, m.attention_gate_channels = 5, m.smear_channels = 4;
  }
  if (has_latent_attention(type)) {
    m.q_lora_rank = 12, m.kv_lora_rank = 10, m.qk_nope_head_dim = 6, m.qk_rope_head_dim = 4, m.v_head_dim = 7;
    m.num_key_value_heads = s.heads, m.head_dim = 10;
  }
  if (!has_experts(type)) return m;
  m.num_experts = 5, m.num_experts_per_tok = 2;
  m.moe_intermediate_size = s.intermediate;
  m.router_z_loss_coef = 0.01;
  if (type == ModelType::olmoe) m.num_key_value_heads = s.heads;
  if (type == ModelType::gpt_oss) {
    m.sliding_window = 4, m.swiglu_limit = 0.4;
    for (int64_t l = 0; l < s.layers; ++l)
      m.layer_types.push_back(l % 2 == 0 ? LayerType::sliding_attention : LayerType::full_attention);
  }
  if (type == ModelType::qwen2_moe) {
    m.num_experts = 6, m.shared_expert_intermediate_size = s.intermediate;
    if (s.layers > 1) m.mlp_only_layers = {s.layers - 1};
  }
  if (!has_deepseek_experts(type)) return m;
  m.num_experts = 6, m.n_group = 3, m.topk_group = 2, m.n_shared_experts = 1, m.first_k_dense_replace = 1;
  m.norm_topk_prob = type != ModelType::deepseek_v2, m.routed_scaling_factor = 1.5;
  return m;
}

}  // namespace athanor::testing
