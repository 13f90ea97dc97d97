// Continues prompts with a Sampler, as many at once as the sampler has contexts. A continuation depends only on its
// prompt, its seed and the options, not on other prompts. This is exact on a CPU with up to 8 contexts; with more, and
// on a GPU, logits may round differently, so a draw between two almost equally likely tokens may differ.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "infer/sampler.h"
#include "tokenizer/tokenizer.h"

namespace athanor {

struct Prompt {
  std::string text;
  std::vector<int32_t> tokens;  // at least one token
};

struct ContinueOptions {
  SamplingOptions sampling;  // prompt i uses seed + i
  int64_t max_tokens = 256;
  std::vector<std::string> stops;  // texts before which a continuation ends
  std::vector<int32_t> ends;       // tokens that end it, like the tokenizer's end-of-document token
};

struct Continuation {
  std::string text;
  int64_t tokens = 0;
  const char* stopped_by = "length";  // one of "length", "eod", "stop"
  uint64_t seed = 0;
};

// Receives continuations, prompt after prompt: pieces of text as soon as they are known, then the whole text.
struct ContinuationSink {
  std::function<void(const Prompt&)> begin;
  std::function<void(std::string_view)> piece;
  std::function<void(const Prompt&, const Continuation&)> end;
};

void continue_texts(Sampler&, const Tokenizer&, std::span<const Prompt>, const ContinueOptions&,
                    const ContinuationSink&);

}  // namespace athanor
