// The smallest models of both families, for whole steps on an emulated GPU.
#pragma once
#include "config/config.h"

namespace athanor::testing {

constexpr int64_t kTinyVocab = 61;

inline ModelConfig tiny(ModelType type) {
  ModelConfig m = model_defaults(type);
  m.vocab_size = kTinyVocab;
  m.hidden_size = 32;
  m.num_hidden_layers = 2;
  m.num_attention_heads = 2;
  m.num_key_value_heads = type == ModelType::gpt2 ? 2 : 1;
  m.head_dim = 16;
  m.intermediate_size = 48;
  m.max_position_embeddings = 32;
  return m;
}

}  // namespace athanor::testing
