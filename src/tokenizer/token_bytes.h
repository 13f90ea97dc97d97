// Texts of single tokens: their sizes in bytes, for losses in bits per byte, which are comparable across tokenizers;
// and lookup by text.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace athanor {

// Bytes of each token, [min(vocabulary, vocab_size)]; 0 for the end-of-document token and for ids without text. Empty
// without a tokenizer.
std::vector<int32_t> bytes_of_tokens(const Tokenizer* tokenizer, int64_t vocab_size);

// A token's text inside a larger text; nullopt for an id without text.
std::optional<std::string> text_of_token(const Tokenizer& tokenizer, int32_t id);

// All ids that decode to this text, ascending.
std::vector<int32_t> ids_with_text(const Tokenizer& tokenizer, std::string_view text);

}  // namespace athanor
