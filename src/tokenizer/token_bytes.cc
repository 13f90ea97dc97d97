#include "tokenizer/token_bytes.h"

#include <algorithm>

#include "base/error.h"

namespace athanor {

std::vector<int32_t> bytes_of_tokens(const Tokenizer* tokenizer, int64_t vocab_size) {
  std::vector<int32_t> bytes;
  if (!tokenizer) return bytes;
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer->vocab_size()); ++id) {
    int32_t length = 0;
    try {
      length = id == tokenizer->eod_id() ? 0 : int32_t(tokenizer->decode({&id, 1}, TextPlace::inside).size());
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): an id without text has no bytes
    }
    bytes.push_back(length);
  }
  return bytes;
}

}  // namespace athanor
