#include "infer/multiple_choice.h"

#include <algorithm>

#include "data/loader.h"
#include "infer/evaluate.h"

namespace athanor {
namespace {

// Packs choices into the rows of a micro-batch and sums their losses when it is full.
class Packer {
 public:
  Packer(Engine& engine, ChoiceScores& scores, const std::function<bool()>& stop)
      : engine_(engine),
        scores_(scores),
        stop_(stop),
        rows_(engine.options().micro_batch_size),
        t_(engine.options().seq_length),
        most_(engine.options().documents_per_sequence),
        batch_(rows_, t_, {.reset_attention_mask = true, .max_documents = most_}) {
    clear();
  }

  void add(size_t question, size_t choice, const Question& q) {
    std::vector<int32_t> text = q.context;
    text.insert(text.end(), q.choices[choice].begin(), q.choices[choice].end());
    const auto predicted = int64_t(q.choices[choice].size());
    const int64_t length = std::min(t_, int64_t(text.size()) - 1);  // model input: all but the last token
    if (at_ + length > t_ || in_row_ == most_) {
      at_ = in_row_ = 0;
      if (++row_ == rows_) run();
    }
    const auto last = text.end() - 1, first = last - length;
    const int64_t begin = row_ * t_ + at_;
    std::copy(first, last, batch_.tokens.begin() + begin);
    std::copy(text.end() - predicted, text.end(), batch_.targets.begin() + begin + length - predicted);
    for (int64_t i = 0; i < length; ++i) batch_.positions[size_t(begin + i)] = int32_t(i);
    batch_.documents[size_t(row_ * most_ + in_row_++)] = {int32_t(at_), int32_t(length)};
    waiting_.push_back({question, choice, begin + length - predicted, predicted});
    at_ += length;
  }

  bool stopped() const { return stopped_; }

  void run() {
    stopped_ = stopped_ || (stop_ && stop_());
    if (!waiting_.empty() && !stopped_) {
      set_documents(engine_, batch_);
      engine_.evaluate(batch_.tokens, batch_.targets);
      const std::vector<float> losses = engine_.shared_losses();
      for (const Waiting& w : waiting_)
        for (int64_t i = w.begin; i < w.begin + w.count; ++i)
          scores_[w.question][w.choice] -= double(losses[size_t(i)]);
    }
    clear();
  }

 private:
  struct Waiting {
    size_t question, choice;
    int64_t begin, count;  // range of its losses
  };
  void clear() {
    row_ = at_ = in_row_ = 0;
    waiting_.clear();
    std::fill(batch_.tokens.begin(), batch_.tokens.end(), 0);
    std::fill(batch_.targets.begin(), batch_.targets.end(), -1);
    std::fill(batch_.documents.begin(), batch_.documents.end(), Document{});
  }

  Engine& engine_;
  ChoiceScores& scores_;
  const std::function<bool()>& stop_;
  bool stopped_ = false;
  const int64_t rows_, t_, most_;
  HostBatch batch_;
  std::vector<Waiting> waiting_;
  int64_t row_ = 0, at_ = 0, in_row_ = 0;
};

size_t best(const std::vector<double>& scores, const auto& size) {
  size_t best = 0;
  for (size_t i = 1; i < scores.size(); ++i)
    if (scores[i] / size(i) > scores[best] / size(best)) best = i;
  return best;
}

}  // namespace

ChoiceScores score(Engine& engine, const std::vector<Question>& questions, const std::function<bool()>& stop) {
  ChoiceScores scores;
  for (const Question& q : questions) scores.emplace_back(q.choices.size(), 0.0);
  Packer packer(engine, scores, stop);
  for (size_t q = 0; q < questions.size() && !packer.stopped(); ++q)
    for (size_t c = 0; c < questions[q].choices.size(); ++c) packer.add(q, c, questions[q]);
  packer.run();
  engine.set_documents({}, {});
  return packer.stopped() ? ChoiceScores{} : scores;
}

ChoiceResult grade(const std::vector<Question>& questions, const ChoiceScores& scores) {
  ChoiceResult r{.questions = int64_t(questions.size())};
  const double share = 1.0 / double(questions.size());
  for (size_t i = 0; i < questions.size(); ++i) {
    const Question& q = questions[i];
    const auto right = size_t(q.label);
    r.accuracy += share * (best(scores[i], [](size_t) { return 1.0; }) == right);
    r.accuracy_per_token += share * (best(scores[i], [&](size_t c) { return double(q.choices[c].size()); }) == right);
    r.accuracy_per_character += share * (best(scores[i], [&](size_t c) { return double(q.characters[c]); }) == right);
    r.loss -= scores[i][right];
    r.tokens += int64_t(q.choices[right].size());
  }
  r.loss /= double(r.tokens);
  return r;
}

}  // namespace athanor
