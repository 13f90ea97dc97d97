// Sampler: generates text token by token with a key/value cache. Draws are f(seed, position).
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "model/model.h"

namespace athanor {

struct SamplingOptions {
  double temperature = 1;  // 0: greedy
  int64_t top_k = 0;       // only the k likeliest; 0 = all
  double top_p = 1;        // smallest set of tokens with this probability [Holtzman et al. 2020]
  double min_p = 0;  // only tokens with this share of the likeliest one's probability [Nguyen et al. 2024]; 0 = all
  uint64_t seed = 0;
};

// Throws an Error unless all logits [N, V] are finite.
void require_finite_logits(std::span<const float> logits, int64_t vocab_size);

// The next token from logits [V]; `draw` is the index of the random draw within a text.
int32_t choose_token(std::span<const float> logits, const SamplingOptions&, uint64_t draw);

class Sampler {
 public:
  // Context of up to `capacity` tokens. Prompts are processed in pieces of a fixed size, so results do not depend on
  // the sampler's capacity.
  static constexpr int64_t kPiece = 64;  // tokens: enough for the full rate of products
  Sampler(const ModelConfig&, const Recipe&, Backend, int64_t capacity);
  Model& model() { return *model_; }
  const MemoryPlan& memory() const { return memory_; }
  void commit();  // then load weights into model()

  // Logits [V] after the prompt; resets the context. Valid until the next call.
  std::span<const float> prompt(std::span<const int32_t> tokens);
  // Logits after one more token. When the cache is full, the second half of the context, including this token, is
  // processed again as a prompt and the rest is dropped, so text may have any length.
  std::span<const float> next(int32_t token);
  int64_t length() const { return length_; }
  int64_t capacity() const { return cache_.capacity; }

 private:
  struct Inputs {
    Batch batch;
    Tensor last_row;
  };
  Ctx context(Ops& ops);
  void plan_inputs(Inputs&, int64_t tokens, const char* name);
  Buffer run(Ctx, const Inputs&);
  void feed(const char* phase, Inputs&, std::span<const int32_t> tokens);

  Recipe recipe_;
  Backend backend_;
  Arena arena_;
  std::unique_ptr<Model> model_;
  KvCache cache_;
  Inputs prompt_, next_;
  int64_t length_ = 0;
  std::vector<int32_t> context_;  // the tokens in the cache
  std::vector<float> logits_;     // [V]
  MemoryPlan memory_;
};

}  // namespace athanor
