// Tokenized multiple-choice questions: a context and its possible continuations, one of which is correct. Read from
// JSON lines in HellaSwag's format or in ours (data/README.md).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace athanor {

struct Question {
  std::vector<int32_t> context;               // at least one token
  std::vector<std::vector<int32_t>> choices;  // each has at least one token
  std::vector<int64_t> characters;            // number of characters of each choice's text, for scores normalized by
                                              // length
  int64_t label = 0;                          // index of the correct choice
};

struct QuestionLimits {
  int64_t seq_length = 0;  // contexts are truncated on the left so that they fit with every choice
  int64_t vocab_size = 0;  // vocabulary of the model
};

// Hash of all questions.
std::string fingerprint(const std::vector<Question>&);

// Throws Error(usage) with file and line for an invalid question.
std::vector<Question> read_questions(const std::string& path, const Tokenizer& tokenizer, QuestionLimits limits);

}  // namespace athanor
