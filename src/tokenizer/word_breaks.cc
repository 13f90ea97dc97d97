#include "tokenizer/word_breaks.h"

namespace athanor {
namespace {

void note(std::vector<uint32_t>& codes, uint32_t code) {
  if (std::find(codes.begin(), codes.end(), code) == codes.end()) codes.push_back(code);
}

}  // namespace

// Neighbouring unknown characters may become one unknown token across a break, unless the space or newline after the
// break is itself a token.
WordBreaks::WordBreaks(const TokenTable& tokens, bool lossless)
    : breaks_{.space = lossless || tokens.find(kSpaceMark) >= 0, .newline = lossless || tokens.find("\n") >= 0} {
  for (size_t id = 0; id < tokens.size(); ++id) add(tokens[id]);
}

void WordBreaks::add(std::string_view token) {
  constexpr size_t kMost = 64;  // characters: with more, checking them costs more than breaks save
  uint32_t previous = 0;
  for (size_t at = 0; at < token.size();) {
    const Char c = char_at(token, at);
    if (at > 0 && token.substr(at).starts_with(kSpaceMark)) note(before_space_, previous);
    if (at > 0 && c.code == '\n') note(before_newline_, previous);
    previous = c.code;
    at += c.bytes;
  }
  breaks_.space = breaks_.space && before_space_.size() <= kMost;
  breaks_.newline = breaks_.newline && before_newline_.size() <= kMost;
}

}  // namespace athanor
