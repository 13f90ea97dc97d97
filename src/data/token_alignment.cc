#include "data/token_alignment.h"

#include <algorithm>
#include <string>

namespace athanor {
namespace {

// The text of some tokens and, for each token, where its text ends.
struct Ends {
  std::string text;
  std::vector<size_t> of;  // of[i]: end of token i's text, in bytes
  Ends(const Tokenizer& tokenizer, std::span<const int32_t> ids, TextPlace place) {
    for (const int32_t id : ids) {
      text += tokenizer.decode({&id, 1}, text.empty() ? place : TextPlace::inside);
      of.push_back(text.size());
    }
  }
};

// For each end in `ours`, the last token of `theirs` that ends there, within the `same` bytes in which both texts
// agree; else -1.
std::vector<int64_t> matches(const std::vector<size_t>& ours, const std::vector<size_t>& theirs, size_t same) {
  std::vector<int64_t> out;
  size_t next = 0;
  for (const size_t end : ours) {
    while (next < theirs.size() && theirs[next] <= end) ++next;
    const bool found = next > 0 && theirs[next - 1] == end && end <= same;
    out.push_back(found ? int64_t(next) - 1 : -1);
  }
  return out;
}

}  // namespace

AlignedTokens TokenAligner::align(std::span<const int32_t> tokens) {
  AlignedTokens out;
  const auto add = [&](int32_t id) {
    out.tokens.push_back(id);
    return int64_t(out.tokens.size()) - 1;
  };
  for (size_t begin = 0; begin < tokens.size();) {
    const auto document = tokens.subspan(begin);
    const auto length = size_t(std::ranges::find(document, from_.eod_id()) - document.begin());
    if (bos_ >= 0) add(bos_);
    const int64_t first = int64_t(out.tokens.size());
    const Ends ours(from_, document.first(length), begin == 0 ? TextPlace::inside : TextPlace::after_token);
    const TextPlace place = begin == 0 ? TextPlace::inside : TextPlace::document;
    std::vector<int32_t> ids;
    encoder_->append(ours.text, ids, place);
    const Ends theirs(to_, ids, begin == 0 ? TextPlace::inside : TextPlace::after_token);
    const size_t same = size_t(std::ranges::mismatch(ours.text, theirs.text).in1 - ours.text.begin());
    for (const int64_t match : matches(ours.of, theirs.of, same))
      out.positions.push_back(match < 0 ? -1 : first + match);
    out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
    begin += length;
    if (begin == tokens.size()) break;
    out.positions.push_back(add(to_.eod_id()));
    out.ends.push_back(int64_t(out.tokens.size()));
    ++begin;
  }
  if (int64_t(out.tokens.size()) > limit_) out.tokens.resize(size_t(limit_));
  for (int64_t& position : out.positions)
    if (position >= limit_) position = -1;
  std::erase_if(out.ends, [&](int64_t end) { return end > limit_; });
  return out;
}

}  // namespace athanor
