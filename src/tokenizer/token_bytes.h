// Bytes of text per token, for losses in bits per byte, which compare across tokenizers.
#pragma once
#include <cstdint>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace athanor {

// [vocabulary, at most vocab_size]; 0 for the end of a document and for ids without text. Empty without a tokenizer.
std::vector<int32_t> bytes_of_tokens(const Tokenizer* tokenizer, int64_t vocab_size);

}  // namespace athanor
