// Multiple choice: log-likelihood of each continuation of a context, and the accuracy of choosing the likeliest.
// Several continuations share a sequence as documents that do not attend to each other.
#pragma once
#include <functional>
#include <vector>

#include "data/questions.h"
#include "engine/engine.h"

namespace athanor {

// Log probability (nats) of each choice given its context, summed over its tokens: [question][choice].
using ChoiceScores = std::vector<std::vector<double>>;
// The engine must allow at least one document per sequence; with more, fewer micro-batches are needed. All ranks call
// it together with the same questions and get the scores. `stop` is as in EvalOptions; then the result is empty.
ChoiceScores score(Engine&, const std::vector<Question>&, const std::function<bool()>& stop = {});
constexpr int64_t kChoicesPerSequence = 16;  // more gain little

struct ChoiceResult {
  int64_t questions = 0, tokens = 0;  // tokens: of the right choices
  double loss = 0;                    // loss of the right choices, nats per token
  double accuracy = 0;                // the likeliest choice is correct
  double accuracy_per_token = 0;      // accuracy by log probability per token (llm.c's acc_norm)
  double accuracy_per_character = 0;  // or per character of the choice (lm-evaluation-harness' acc_norm)
};
ChoiceResult grade(const std::vector<Question>&, const ChoiceScores&);

}  // namespace athanor
