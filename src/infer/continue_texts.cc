#include "infer/continue_texts.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/error.h"
#include "infer/stop_text.h"
#include "tokenizer/token_bytes.h"

namespace athanor {
namespace {

// Returns the ids for which the tokenizer has a text. A model's vocabulary may be padded beyond its tokenizer's, and
// tokenizers have unused ids; neither may be drawn.
std::vector<bool> drawable(const Tokenizer& tokenizer, int64_t vocab_size) {
  std::vector<bool> ok(size_t(vocab_size), false);
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id)
    ok[size_t(id)] = text_of_token(tokenizer, id).has_value();
  return ok;
}

// Draws tokens from the drawable ids.
class Drawing {
 public:
  Drawing(const Tokenizer& tokenizer, int64_t vocab_size) : drawable_(drawable(tokenizer, vocab_size)) {}

  int32_t draw(std::span<const float> logits, const SamplingOptions& sampling, uint64_t number) {
    require_finite_logits(logits, int64_t(logits.size()));
    masked_.assign(logits.begin(), logits.end());
    for (size_t id = 0; id < masked_.size(); ++id)
      if (!drawable_[id]) masked_[id] = -std::numeric_limits<float>::infinity();
    return choose_token(masked_, sampling, number);
  }

 private:
  std::vector<bool> drawable_;  // [V]
  std::vector<float> masked_;   // [V]
};

// A prompt and the state of its continuation.
class OpenText {
 public:
  OpenText(const Prompt& prompt, const ContinueOptions& options, int64_t number)
      : prompt_(prompt),
        max_tokens_(options.max_tokens),
        ends_(options.ends),
        sampling_(options.sampling),
        stop_(options.stops) {
    sampling_.seed += uint64_t(number);
    result_.seed = sampling_.seed;
  }

  // Draws the next token; returns nothing if the continuation has ended.
  std::optional<int32_t> step(std::span<const float> logits, const Tokenizer& tokenizer, Drawing& drawing) {
    const int32_t token = drawing.draw(logits, sampling_, uint64_t(result_.tokens));
    if (token == tokenizer.eod_id() || std::ranges::find(ends_, token) != ends_.end()) return end("eod");
    const bool begins = result_.tokens == 0 && prompt_.text.empty();
    ++result_.tokens;
    result_.text += stop_.add(tokenizer.decode({&token, 1}, begins ? TextPlace::after_token : TextPlace::inside));
    if (stop_.found()) return end("stop");
    if (result_.tokens == max_tokens_) return end("length");
    return token;
  }

  // Passes new text to the sink; returns true if the continuation is complete.
  bool show(const ContinuationSink& sink) {
    if (!begun_) sink.begin(prompt_);
    begun_ = true;
    if (shown_ < result_.text.size()) sink.piece(std::string_view(result_.text).substr(shown_));
    shown_ = result_.text.size();
    if (ended_) sink.end(prompt_, result_);
    return ended_;
  }

 private:
  std::nullopt_t end(const char* by) {
    if (!stop_.found()) result_.text += stop_.rest();
    result_.stopped_by = by;
    ended_ = true;
    return std::nullopt;
  }

  const Prompt& prompt_;
  int64_t max_tokens_;
  const std::vector<int32_t>& ends_;
  SamplingOptions sampling_;
  StopText stop_;
  Continuation result_;
  size_t shown_ = 0;
  bool begun_ = false, ended_ = false;
};

}  // namespace

void continue_texts(Sampler& sampler, const Tokenizer& tokenizer, std::span<const Prompt> prompts,
                    const ContinueOptions& options, const ContinuationSink& sink) {
  Drawing drawing(tokenizer, sampler.model().config().vocab_size);
  std::vector<OpenText> all;
  for (const Prompt& prompt : prompts) all.emplace_back(prompt, options, int64_t(all.size()));
  std::vector<OpenText*> at(static_cast<size_t>(sampler.texts()));  // text that uses each context, or null
  size_t begun = 0, shown = 0;
  while (shown < all.size()) {
    std::vector<NextToken> tokens;
    for (size_t text = 0; text < at.size(); ++text) {
      if (!at[text] && begun < all.size()) {
        sampler.prompt(prompts[begun].tokens, int64_t(text));
        at[text] = &all[begun++];
      }
      if (!at[text]) continue;
      const auto token = at[text]->step(sampler.logits(int64_t(text)), tokenizer, drawing);
      token ? tokens.push_back({int64_t(text), *token}) : void(at[text] = nullptr);
    }
    while (shown < begun && all[shown].show(sink)) ++shown;
    sampler.next(tokens);
  }
}

}  // namespace athanor
