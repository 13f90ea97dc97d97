// Finds added tokens in a text: the leftmost match, and among matches at the same position the longest.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

class TokenFinder {
 public:
  struct Token {
    std::string text;
    int32_t id = -1;
    bool strips_left = false, strips_right = false;  // includes the white space before it, or after it
  };
  TokenFinder() = default;
  explicit TokenFinder(std::vector<Token> tokens);  // empty texts are not allowed; the first of equal texts counts
  bool empty() const { return tokens_.empty(); }
  size_t longest() const { return longest_; }

  struct Match {
    size_t begin = std::string_view::npos, end = 0;  // place of the token's text; npos: no token
    const Token* token = nullptr;
    explicit operator bool() const { return begin != std::string_view::npos; }
  };
  Match next(std::string_view text, size_t from) const;
  Match at(std::string_view text, size_t place) const;  // the longest token that begins there

 private:
  std::vector<Token> tokens_;      // sorted by text
  std::array<bool, 256> first_{};  // first bytes of all tokens
  size_t longest_ = 0;
};

}  // namespace athanor
