// Texts of single tokens: their bytes, for losses in bits per byte, which compare across tokenizers; and which have
// one.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace athanor {

// [vocabulary, at most vocab_size]; 0 for the end of a document and for ids without text. Empty without a tokenizer.
std::vector<int32_t> bytes_of_tokens(const Tokenizer* tokenizer, int64_t vocab_size);

// The ids that are decoded to this text, ascending.
std::vector<int32_t> ids_with_text(const Tokenizer& tokenizer, std::string_view text);

}  // namespace athanor
