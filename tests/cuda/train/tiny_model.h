// The smallest models of both families, for whole steps on an emulated GPU.
#pragma once
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "config/choices.h"
#include "tests/tiny_model.h"

namespace athanor::testing {

constexpr int64_t kTinyVocab = 61;

inline ModelConfig tiny(ModelType type) {
  return tiny_model(
      type, {.vocab = kTinyVocab, .hidden = 32, .heads = 2, .kv_heads = 1, .intermediate = 48, .positions = 32});
}

// A micro-batch of random tokens, starting at `place` in their random streams.
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
