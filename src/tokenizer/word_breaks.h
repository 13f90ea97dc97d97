// Word breaks: places that no token of a vocabulary that writes spaces as U+2581 can span. A text may be cut there, and
// splits there into words that are encoded separately.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/token_table.h"
#include "tokenizer/unicode.h"

namespace athanor {

inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581

class WordBreaks {
 public:
  WordBreaks() = default;  // breaks at every space
  // Breaks are where no token can continue; `lossless`: unknown characters are encoded one by one.
  WordBreaks(const TokenTable& tokens, bool lossless);
  void add(std::string_view token);  // adds another token that must not span a break

  // True if a word may end with this character before a space, or before a newline.
  bool before_space(uint32_t code) const { return breaks_.space && !has(before_space_, code); }
  bool before_newline(uint32_t code) const { return breaks_.newline && !has(before_newline_, code); }

  // Calls word(text) for each word in order.
  template <class Fn>
  void for_each(std::string_view text, Fn&& word) const {
    size_t begin = 0;
    for (size_t at = 1; at < text.size(); ++at) {
      const bool newline = text[at] == '\n';
      if (!newline && !(text[at] == kSpaceMark[0] && text.substr(at).starts_with(kSpaceMark))) continue;
      const uint32_t before = char_at(text, char_before(text, at)).code;
      if (newline ? !before_newline(before) : !before_space(before)) continue;
      word(text.substr(begin, at - begin));
      begin = at;
    }
    if (begin < text.size()) word(text.substr(begin));
  }

 private:
  static bool has(const std::vector<uint32_t>& codes, uint32_t code) {
    return std::find(codes.begin(), codes.end(), code) != codes.end();
  }
  struct {
    bool space = true, newline = false;
  } breaks_;
  std::vector<uint32_t> before_space_, before_newline_;  // characters that tokens have before a space or a newline,
                                                         // mostly spaces
};

}  // namespace athanor
