// Models of a few thousand weights, for tests of whole steps.
#pragma once
#include "config/model_config.h"

namespace athanor::testing {

struct TinySizes {
  int64_t vocab, hidden, layers = 2, heads;
  int64_t kv_heads = heads;  // of families that group queries
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
  if (!has_experts(type)) return m;
  m.num_experts = 5, m.num_experts_per_tok = 2;
  m.moe_intermediate_size = s.intermediate;
  m.router_z_loss_coef = 0.01;
  if (type == ModelType::olmoe) m.num_key_value_heads = s.heads;
  return m;
}

}  // namespace athanor::testing
