// The smallest models of both families, for whole steps on an emulated GPU.
#pragma once
#include <cstdint>
#include <vector>

#include "base/rng.h"
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

// A micro-batch of random numbers, from a place in their streams on.
struct TinyBatch {
  TinyBatch(int64_t place, int64_t count) : tokens(size_t(count)), targets(size_t(count)) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = int32_t(random_bits(1, 0, uint64_t(place) + i) % kTinyVocab);
      targets[i] = int32_t(random_bits(1, 1, uint64_t(place) + i) % kTinyVocab);
    }
  }
  std::vector<int32_t> tokens, targets;
};

}  // namespace athanor::testing
