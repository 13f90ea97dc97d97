// Multiple choice: log-likelihood of each continuation of a context, and the accuracy of choosing the most likely one.
#pragma once
#include <vector>

#include "data/questions.h"
#include "infer/text_scores.h"

namespace athanor {

// Log probability (nats) of each choice given its context, summed over its tokens: [question][choice].
using ChoiceScores = std::vector<std::vector<double>>;
// Returns the scores; if stopped, the result is empty. All ranks call it together with the same questions and get all
// scores.
ChoiceScores score(Engine&, const std::vector<Question>&, const ScoringOptions& options = {});
constexpr int64_t kChoicesPerSequence = 16;  // more gain little

struct ChoiceResult {
  int64_t questions = 0, tokens = 0;  // tokens: of the correct choices
  double loss = 0;                    // loss of the correct choices, nats per token
  double accuracy = 0;                // fraction of questions whose most likely choice is correct
  double accuracy_per_token = 0;      // accuracy by log probability per token (llm.c's acc_norm)
  double accuracy_per_character = 0;  // accuracy by log probability per character (lm-evaluation-harness' acc_norm)
};
ChoiceResult grade(const std::vector<Question>&, const ChoiceScores&);

}  // namespace athanor
