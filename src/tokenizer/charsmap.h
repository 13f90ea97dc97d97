// The table of a SentencePiece model that says which characters become which: a double array in the layout of
// darts-clone, and the replacements.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

class Charsmap {
 public:
  Charsmap() = default;
  // precompiled_charsmap of the file; an Error(usage) naming `where` for what is none.
  Charsmap(std::string_view blob, const std::string& where);
  bool empty() const { return units_.empty(); }

  struct Match {
    size_t bytes = 0;  // of the text; 0: none
    std::string_view replacement;
  };
  Match longest(std::string_view text) const;  // rule for what the text begins with

 private:
  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends with a zero byte
};

}  // namespace athanor
