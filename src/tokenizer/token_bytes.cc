#include "tokenizer/token_bytes.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"

namespace athanor {
std::optional<std::string> text_of_token(const Tokenizer& tokenizer, int32_t id) {
  try {
    return tokenizer.decode({&id, 1}, TextPlace::inside);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<int32_t> bytes_of_tokens(const Tokenizer* tokenizer, int64_t vocab_size) {
  std::vector<int32_t> bytes;
  if (!tokenizer) return bytes;
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer->vocab_size()); ++id)
    bytes.push_back(id == tokenizer->eod_id() ? 0 : int32_t(text_of_token(*tokenizer, id).value_or("").size()));
  return bytes;
}

std::vector<int32_t> ids_with_text(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (text_of_token(tokenizer, id) == text) ids.push_back(id);
  return ids;
}

}  // namespace athanor
