#include "infer/text_scores.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/loader.h"
#include "infer/evaluate.h"

namespace athanor {
namespace {

// Returns tokens of the texts, one text after the other, for the places of a micro-batch without a text. A router would
// send equal tokens to the same experts, which may be more than their ranks have room for.
std::vector<int32_t> tokens_between(std::span<const ScoredText> texts, int64_t count) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; !texts.empty() && int64_t(tokens.size()) < count; ++i) {
    const std::vector<int32_t>& text = texts[i % texts.size()].tokens;
    tokens.insert(tokens.end(), text.begin(), text.end());
  }
  tokens.resize(size_t(count), 0);
  return tokens;
}

// Packs texts into the rows of micro-batches, which are assigned to the ranks round-robin.
class Packer {
 public:
  Packer(Engine& engine, std::span<const ScoredText> texts, std::vector<TextScore>& scores,
         const ScoringOptions& options)
      : engine_(engine),
        scores_(scores),
        options_(options),
        rows_(engine.options().micro_batch_size),
        t_(engine.options().seq_length),
        most_(engine.options().documents_per_sequence),
        between_(tokens_between(texts, rows_ * t_)),
        batch_(make_batch()),
        own_(make_batch()) {}

  void add(size_t index, const ScoredText& text) {
    const auto size = int64_t(text.tokens.size());
    const int64_t length = std::min(t_, size - 1);  // model input: all but the last token
    CHECK(text.scored >= 1 && text.scored <= length, text.scored, " of ", size, " tokens in sequences of ", t_);
    if (at_ + length > t_ || in_row_ == most_) {
      at_ = in_row_ = 0;
      if (++row_ == rows_) end_batch();
    }
    const auto last = text.tokens.end() - 1, first = last - length;
    const int64_t begin = row_ * t_ + at_;
    std::copy(first, last, batch_.batch.tokens.begin() + begin);
    std::copy(text.tokens.end() - text.scored, text.tokens.end(),
              batch_.batch.targets.begin() + begin + length - text.scored);
    for (int64_t i = 0; i < length; ++i) batch_.batch.positions[size_t(begin + i)] = int32_t(i);
    batch_.batch.documents[size_t(row_ * most_ + in_row_++)] = {int32_t(at_), int32_t(length)};
    batch_.places.push_back({index, begin + length - text.scored, text.scored});
    at_ += length;
  }

  bool stopped() const { return stopped_; }

  void finish() {
    if (!batch_.places.empty()) end_batch();
    if (turn_ > 0) run();
  }

 private:
  struct Place {
    size_t index;
    int64_t begin, count;  // range of its losses
  };
  struct Packed {
    HostBatch batch;
    std::vector<Place> places;
  };

  Packed make_batch() const {
    Packed packed{HostBatch(rows_, t_, {.reset_attention_mask = true, .max_documents = most_}), {}};
    clear(packed);
    return packed;
  }
  void clear(Packed& packed) const {
    packed.places.clear();
    packed.batch.tokens = between_;
    std::fill(packed.batch.targets.begin(), packed.batch.targets.end(), -1);
    std::fill(packed.batch.documents.begin(), packed.batch.documents.end(), Document{});
  }

  void end_batch() {
    if (turn_ == engine_.rank()) std::swap(batch_, own_);
    clear(batch_);
    row_ = at_ = in_row_ = 0;
    if (++turn_ == engine_.ranks()) run();
  }

  // Runs one micro-batch per rank; in the last round some ranks have none.
  void run() {
    turn_ = 0;
    stopped_ = stopped_ || (options_.stop && options_.stop());
    if (stopped_) return;
    set_documents(engine_, own_.batch);
    engine_.evaluate(own_.batch.tokens, own_.batch.targets);
    if (engine_.reports_losses()) {
      const std::vector<float> losses = engine_.losses();
      for (const Place& place : own_.places)
        for (int64_t i = place.begin; i < place.begin + place.count; ++i)
          scores_[place.index].log_probability -= double(losses[size_t(i)]);
    }
    if (options_.misses) count_misses();
    clear(own_);
  }

  void count_misses() {
    const std::vector<float> logits = engine_.logits(own_.batch.tokens);
    const auto vocabulary = std::ptrdiff_t(logits.size() / own_.batch.tokens.size());
    for (const Place& place : own_.places)
      for (int64_t i = place.begin; i < place.begin + place.count; ++i) {
        const auto row = logits.begin() + i * vocabulary;
        scores_[place.index].misses += std::max_element(row, row + vocabulary) - row != own_.batch.targets[size_t(i)];
      }
  }

  Engine& engine_;
  std::vector<TextScore>& scores_;
  const ScoringOptions& options_;
  bool stopped_ = false;
  const int64_t rows_, t_, most_;
  const std::vector<int32_t> between_;
  Packed batch_, own_;  // being filled; this rank's batch of the round
  int turn_ = 0;        // rank whose micro-batch is being filled
  int64_t row_ = 0, at_ = 0, in_row_ = 0;
};

}  // namespace

std::vector<TextScore> score_texts(Engine& engine, std::span<const ScoredText> texts, const ScoringOptions& options) {
  std::vector<TextScore> scores(texts.size());
  Packer packer(engine, texts, scores, options);
  for (size_t i = 0; i < texts.size() && !packer.stopped(); ++i) packer.add(i, texts[i]);
  if (!packer.stopped()) packer.finish();
  engine.set_documents({}, {});
  if (packer.stopped()) return {};
  constexpr int64_t kNumbers = sizeof(TextScore) / sizeof(double);
  if (options.control)
    options.control->all_reduce({scores.data(), DType::f64, {int64_t(scores.size()) * kNumbers}}, Reduce::sum,
                                Stream::compute);
  return scores;
}

}  // namespace athanor
