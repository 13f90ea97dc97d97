// Re-tokenizes a window's text with another tokenizer and aligns positions of both that end at the same text.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace athanor {

struct AlignedTokens {
  std::vector<int32_t> tokens;     // tokens of the other tokenizer
  std::vector<int64_t> ends;       // document ends among them, ascending
  std::vector<int64_t> positions;  // [T]: the position in `tokens` whose text ends where this position's text ends; -1:
                                   // none
};

// Documents are cut at `from`'s end-of-document token, which becomes `to`'s. The first text of a window is treated as
// the middle of a document. At most `limit` tokens are produced; positions behind them are -1, and so are positions of
// a document behind the first place where `to` does not reproduce the given text, as with tokenizers that normalize.
// bos: a token of `to` put in front of every document and of the window; -1: none. Both tokenizers must outlive it; for
// one thread.
class TokenAligner {
 public:
  TokenAligner(const Tokenizer& from, const Tokenizer& to, int64_t limit, int32_t bos = -1)
      : from_(from), to_(to), encoder_(to.encoder()), limit_(limit), bos_(bos) {}
  AlignedTokens align(std::span<const int32_t> tokens);

 private:
  const Tokenizer &from_, &to_;
  std::unique_ptr<Encoder> encoder_;
  int64_t limit_;
  int32_t bos_;
};

}  // namespace athanor
