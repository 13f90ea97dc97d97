// Finds added tokens in a text: the leftmost match, and of those the longest.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace athanor {

class TokenFinder {
 public:
  TokenFinder() = default;
  explicit TokenFinder(std::vector<std::pair<std::string, int32_t>> tokens);  // no empty texts; of equal texts the
                                                                              // first counts
  bool empty() const { return tokens_.empty(); }
  size_t longest() const { return longest_; }

  struct Match {
    size_t begin = std::string_view::npos, end = 0;  // npos: none
    int32_t id = -1;
    explicit operator bool() const { return begin != std::string_view::npos; }
  };
  Match next(std::string_view text, size_t from) const;
  Match at(std::string_view text, size_t place) const;  // the longest token that begins there

 private:
  std::vector<std::pair<std::string, int32_t>> tokens_;  // sorted by text
  std::array<bool, 256> first_{};                        // first bytes of all tokens
  size_t longest_ = 0;
};

}  // namespace athanor
