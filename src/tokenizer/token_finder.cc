#include "tokenizer/token_finder.h"

#include <algorithm>

#include "base/error.h"

namespace athanor {

TokenFinder::TokenFinder(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.text < b.text; });
  const auto same = [](const auto& a, const auto& b) { return a.text == b.text; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same), tokens_.end());
  for (const Token& token : tokens_) {
    CHECK(!token.text.empty(), "token ", token.id, " without text");
    first_[uint8_t(token.text[0])] = true;
    longest_ = std::max(longest_, token.text.size());
  }
}

TokenFinder::Match TokenFinder::at(std::string_view text, size_t place) const {
  if (!first_[uint8_t(text[place])]) return {};
  Match match;
  auto low = tokens_.begin(), high = tokens_.end();  // tokens that match the text so far
  for (size_t depth = 0; place + depth < text.size() && low != high; ++depth) {
    const auto byte = uint8_t(text[place + depth]);
    const auto order = [&](const Token& token) {
      return token.text.size() > depth ? int(uint8_t(token.text[depth])) : -1;
    };
    low = std::partition_point(low, high, [&](const Token& token) { return order(token) < byte; });
    high = std::partition_point(low, high, [&](const Token& token) { return order(token) <= byte; });
    if (low != high && low->text.size() == depth + 1) match = {place, place + depth + 1, &*low};
  }
  return match;
}

TokenFinder::Match TokenFinder::next(std::string_view text, size_t from) const {
  if (empty()) return {};
  for (size_t place = from; place < text.size(); ++place)
    if (const Match match = at(text, place)) return match;
  return {};
}

}  // namespace athanor
