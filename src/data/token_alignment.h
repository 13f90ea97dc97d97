// A window's text in the tokens of another tokenizer, and which positions of both have seen the same text.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace athanor {

struct AlignedTokens {
  std::vector<int32_t> tokens;     // of the other tokenizer
  std::vector<int64_t> ends;       // of documents among them, ascending
  std::vector<int64_t> positions;  // [T]: the other position whose text ends where this one's does; -1: there is none
};

// bos: a token of `to` that begins every document and the window; -1: none.
// Documents are cut at `from`'s end of document, which becomes `to`'s. The first text of a window is taken as the
// middle of one. At most `limit` tokens are made; positions behind them have none, and neither have those of a document
// behind the first place where `to` does not give back the text that it was given, as tokenizers that normalize do.
AlignedTokens align_tokens(const Tokenizer& from, const Tokenizer& to, std::span<const int32_t> tokens, int64_t limit,
                           int32_t bos = -1);

}  // namespace athanor
