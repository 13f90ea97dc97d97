#include "infer/multiple_choice.h"

namespace athanor {
namespace {

size_t best(const std::vector<double>& scores, const auto& size) {
  size_t best = 0;
  for (size_t i = 1; i < scores.size(); ++i)
    if (scores[i] / size(i) > scores[best] / size(best)) best = i;
  return best;
}

}  // namespace

ChoiceScores score(Engine& engine, const std::vector<Question>& questions, const ScoringOptions& options) {
  std::vector<ScoredText> texts;
  for (const Question& q : questions)
    for (const auto& choice : q.choices) {
      texts.push_back({q.context, int64_t(choice.size())});
      texts.back().tokens.insert(texts.back().tokens.end(), choice.begin(), choice.end());
    }
  const std::vector<TextScore> found = score_texts(engine, texts, options);
  ChoiceScores scores;
  size_t at = 0;
  for (const Question& q : questions) {
    if (found.empty()) break;
    scores.emplace_back();
    for (size_t c = 0; c < q.choices.size(); ++c) scores.back().push_back(found[at++].log_probability);
  }
  return scores;
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
