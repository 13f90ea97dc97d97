// Sampler: text out of a model, token by token, with a key/value cache. Draws are f(seed, position).
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "model/model.h"

namespace athanor {

struct SamplingOptions {
  double temperature = 1;  // 0: the likeliest token always
  int64_t top_k = 0;       // only the k likeliest; 0 = all
  double top_p = 1;        // the fewest tokens that have this probability together [Holtzman et al. 2020]
  uint64_t seed = 0;
};

// Error where logits [N, V] are not all finite: nothing that follows from them would mean anything.
void require_finite_logits(std::span<const float> logits, int64_t vocab_size);

// The next token from logits [V]; `draw` numbers the draws of one text.
int32_t choose_token(std::span<const float> logits, const SamplingOptions&, uint64_t draw);

class Sampler {
 public:
  // Logits follow from up to capacity tokens at a time. Prompts of any length are computed in pieces of
  // one size, so that what follows a prompt does not depend on what else a sampler was made for.
  static constexpr int64_t kPiece = 64;  // tokens: enough for the full rate of products
  Sampler(const ModelConfig&, const Recipe&, Backend, int64_t capacity);
  Model& model() { return *model_; }
  const MemoryPlan& memory() const { return memory_; }
  void commit();  // then load weights into model()

  // Logits [V] after the prompt; forgets what was before. Valid until the next call.
  std::span<const float> prompt(std::span<const int32_t> tokens);
  // Logits after one more token. Where the cache is full the context slides: its last half, this token included, is
  // read anew as a prompt and what was before is forgotten, so that a text may be of any length.
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
