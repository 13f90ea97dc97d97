// Character replacement table of a SentencePiece model: a double-array trie in the layout of darts-clone, and the
// replacement texts.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

class Charsmap {
 public:
  Charsmap() = default;
  // blob: precompiled_charsmap of the model file. Throws Error(usage) naming `where` if it is invalid.
  Charsmap(std::string_view blob, const std::string& where);
  bool empty() const { return units_.empty(); }

  struct Match {
    size_t bytes = 0;  // matched bytes of the text; 0: no match
    std::string_view replacement;
  };
  Match longest(std::string_view text) const;  // the longest rule that matches at the start of the text

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a zero byte
};

}  // namespace athanor
