// Sampler: generates one or several texts token by token with a key/value cache. Each draw depends only on seed and
// position.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "model/model.h"

namespace athanor {

struct SamplingOptions {
  double temperature = 1;  // 0: greedy
  int64_t top_k = 0;       // only the k most likely tokens; 0 = all
  double top_p = 1;        // smallest set of tokens with this probability [Holtzman et al. 2020]
  double min_p = 0;  // only tokens with at least this fraction of the max probability [Nguyen et al. 2024]; 0 = all
  uint64_t seed = 0;
};

// Throws an Error unless all logits [N, V] are finite.
void require_finite_logits(std::span<const float> logits, int64_t vocab_size);

// Returns the next token from logits [V]; `draw` is the index of the random draw within a text.
int32_t choose_token(std::span<const float> logits, const SamplingOptions&, uint64_t draw);

// The next token of a text.
struct NextToken {
  int64_t text = 0;
  int32_t token = 0;
};

class Sampler {
 public:
  // `texts` contexts of up to `capacity` tokens, numbered from 0. Prompts are processed in pieces of a fixed size, the
  // last one padded, so their logits do not depend on the sampler's capacity.
  static constexpr int64_t kPiece = 64;  // tokens per piece: enough for GEMMs to reach their full rate
  Sampler(const ModelConfig&, const Recipe&, Backend, int64_t capacity, int64_t texts = 1, InferenceWeights = {});
  Model& model() { return *model_; }
  const MemoryPlan& memory() const { return memory_; }
  void commit();  // then load weights into model()

  // Returns logits [V] after the prompt; resets the context of the text. Valid until the text's next token or prompt.
  std::span<const float> prompt(std::span<const int32_t> tokens, int64_t text = 0);
  // Adds one token to each of these texts, which must differ, in one forward pass. When the context of a text is full,
  // its second half, including this token, is reprocessed as a prompt and the rest is dropped, so texts may have
  // any length.
  void next(std::span<const NextToken> tokens);
  std::span<const float> next(int32_t token) {
    const NextToken one{0, token};
    next({&one, 1});
    return logits(0);
  }
  std::span<const float> logits(int64_t text) const { return texts_[size_t(text)].logits; }  // [V], the latest
  int64_t texts() const { return int64_t(texts_.size()); }
  int64_t length(int64_t text = 0) const { return texts_[size_t(text)].length; }
  int64_t capacity() const { return cache_.capacity; }

 private:
  struct Inputs {
    Batch batch;
    Tensor last_rows;  // rows whose logits are computed
  };
  struct Text {
    int64_t length = 0;              // number of tokens in the cache
    std::vector<int32_t> context;    // the tokens in the cache
    std::vector<float> logits = {};  // [V]
  };
  // Inputs of a forward pass, one row per token.
  struct Fed {
    std::vector<int32_t> tokens, previous, positions, cache_rows, last_rows;
    std::vector<Span> spans;
  };
  Ctx context(Ops& ops);
  void plan_inputs(Inputs&, int64_t tokens, int64_t spans, const char* name);
  Buffer run(Ctx, const Inputs&);
  void add(Fed&, int64_t text, int64_t at, int32_t token) const;
  std::vector<float> feed(const char* phase, const Inputs&, const Fed&);
  void feed_prompt(int64_t text, std::span<const int32_t> tokens);

  Recipe recipe_;
  Backend backend_;
  Arena arena_;
  std::unique_ptr<Model> model_;
  KvCache cache_;
  int64_t cache_rows_ = 0;  // rows per text: its capacity, and rows for padding tokens after it
  Inputs prompt_, next_;
  std::vector<Text> texts_;
  MemoryPlan memory_;
};

}  // namespace athanor
