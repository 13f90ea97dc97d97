#include "tokenizer/token_finder.h"

#include <algorithm>

#include "base/error.h"

namespace athanor {

TokenFinder::TokenFinder(std::vector<std::pair<std::string, int32_t>> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto same = [](const auto& a, const auto& b) { return a.first == b.first; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same), tokens_.end());
  for (const auto& [text, id] : tokens_) {
    CHECK(!text.empty(), "token ", id, " without text");
    first_[uint8_t(text[0])] = true;
    longest_ = std::max(longest_, text.size());
  }
}

TokenFinder::Match TokenFinder::at(std::string_view text, size_t place) const {
  if (!first_[uint8_t(text[place])]) return {};
  Match match;
  auto low = tokens_.begin(), high = tokens_.end();  // tokens that match the text so far
  for (size_t depth = 0; place + depth < text.size() && low != high; ++depth) {
    const auto byte = uint8_t(text[place + depth]);
    const auto order = [&](const auto& token) {
      return token.first.size() > depth ? int(uint8_t(token.first[depth])) : -1;
    };
    low = std::partition_point(low, high, [&](const auto& token) { return order(token) < byte; });
    high = std::partition_point(low, high, [&](const auto& token) { return order(token) <= byte; });
    if (low != high && low->first.size() == depth + 1) match = {place, place + depth + 1, low->second};
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
