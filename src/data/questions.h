// Multiple-choice questions as tokens: a context and its possible continuations, of which one is right. From JSON lines
// of HellaSwag's or of our own members (data/README.md).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace athanor {

struct Question {
  std::vector<int32_t> context;               // at least one token
  std::vector<std::vector<int32_t>> choices;  // each at least one token
  std::vector<int64_t> characters;            // of each choice's text: what scores may be divided by
  int64_t label = 0;                          // number of the right choice
};

struct QuestionLimits {
  int64_t seq_length = 0;  // a context is cut on its left so that context and choice fit
  int64_t vocab_size = 0;  // of the model
};

// An Error(usage) names file and line of what is no question.
std::vector<Question> read_questions(const std::string& path, const Tokenizer& tokenizer, QuestionLimits limits);

}  // namespace athanor
