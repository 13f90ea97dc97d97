// Texts of single tokens: their bytes, for losses in bits per byte, which compare across tokenizers; and which have
// one.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace athanor {

// [vocabulary, at most vocab_size]; 0 for the end of a document and for ids without text. Empty without a tokenizer.
std::vector<int32_t> bytes_of_tokens(const Tokenizer* tokenizer, int64_t vocab_size);

// A token's text within other text; nothing for an id without text.
std::optional<std::string> text_of_token(const Tokenizer& tokenizer, int32_t id);

// The ids that are decoded to this text, ascending.
std::vector<int32_t> ids_with_text(const Tokenizer& tokenizer, std::string_view text);

}  // namespace athanor
