#include "data/fill_in_the_middle.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace athanor {
namespace {

using Tokens = std::span<const int32_t>;

struct TextParts {
  Tokens prefix, middle, suffix;
};

// Cuts the text, without its last tokens, whose space the sentinels need.
TextParts parts_of(Tokens text, const std::array<uint32_t, 2>& places) {
  const Tokens kept = text.first(text.size() - size_t(kFimSentinels));
  const auto [first, second] =
      std::minmax({uniform_place(places[0], kept.size()), uniform_place(places[1], kept.size())});
  return {kept.first(first), kept.subspan(first, second - first), kept.subspan(second)};
}

std::vector<int32_t> ordered(const TextParts& parts, const FillInTheMiddle& fim, bool suffix_first) {
  std::vector<int32_t> out;
  const auto add = [&](Tokens part) { out.insert(out.end(), part.begin(), part.end()); };
  out.push_back(fim.prefix);
  if (!suffix_first) add(parts.prefix);
  out.push_back(fim.suffix);
  add(parts.suffix);
  out.push_back(fim.middle);
  if (suffix_first) add(parts.prefix);
  add(parts.middle);
  return out;
}

// Reorders the text in place; its length does not change.
void reorder(std::span<int32_t> text, const FillInTheMiddle& fim, const std::array<uint32_t, 2>& places,
             bool suffix_first) {
  std::vector<int32_t> out;
  if (fim.characters)
    if (const auto parts = fim.characters->cut(text, text.size() - size_t(kFimSentinels), places))
      out = ordered({parts->prefix, parts->middle, parts->suffix}, fim, suffix_first);
  if (out.empty()) out = ordered(parts_of(text, places), fim, suffix_first);
  CHECK(out.size() == text.size(), "a text of ", text.size(), " tokens was reordered to ", out.size());
  std::ranges::copy(out, text.begin());
}

bool hits(uint32_t bits, double rate) { return double(bits) * 0x1p-32 < rate; }

// The part of the document [begin, end) of a window that may be reordered: its predicted text.
std::span<int32_t> text_of(Window& window, int64_t begin, int64_t end, int64_t eod_id) {
  while (begin < end && !window.mask[size_t(begin)]) ++begin;
  while (begin < end && (!window.mask[size_t(end) - 1] || window.tokens[size_t(end) - 1] == eod_id)) --end;
  return std::span(window.tokens).subspan(size_t(begin), size_t(end - begin));
}

}  // namespace

void fill_in_the_middle(Window& window, const FillInTheMiddle& fim, const WindowKey& key) {
  const auto of_epoch =
      philox(key.seed, stream_of("fill_in_the_middle"), uint64_t(key.source) << 32 | uint64_t(key.epoch));
  const uint64_t seed = uint64_t(of_epoch[0]) << 32 | of_epoch[1];
  std::vector<int64_t> ends = window.ends;
  ends.push_back(int64_t(window.tokens.size()));  // the window may end with the beginning of a document, or with
                                                  // unfilled positions
  int64_t begin = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    const std::span<int32_t> text = text_of(window, std::exchange(begin, ends[i]), ends[i], fim.eod_id);
    const auto bits = philox(seed, uint64_t(key.window), i);
    if (int64_t(text.size()) < kLeastText || !hits(bits[0], fim.rate)) continue;
    reorder(text, fim, {bits[2], bits[3]}, hits(bits[1], fim.spm_rate));
  }
}

}  // namespace athanor
