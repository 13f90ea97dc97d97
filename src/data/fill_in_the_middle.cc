#include "data/fill_in_the_middle.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace athanor {
namespace {

struct Cuts {
  size_t first, second;
  bool suffix_first;
};

// Reorders the text in place; its length does not change.
void reorder(std::span<int32_t> text, const FillInTheMiddle& fim, const Cuts& cuts) {
  const std::span<int32_t> kept = text.first(text.size() - size_t(kFimSentinels));
  const auto prefix = kept.first(cuts.first), middle = kept.subspan(cuts.first, cuts.second - cuts.first),
             suffix = kept.subspan(cuts.second);
  std::vector<int32_t> out;
  const auto add = [&](std::span<const int32_t> part) { out.insert(out.end(), part.begin(), part.end()); };
  out.push_back(fim.prefix);
  if (!cuts.suffix_first) add(prefix);
  out.push_back(fim.suffix);
  add(suffix);
  out.push_back(fim.middle);
  if (cuts.suffix_first) add(prefix);
  add(middle);
  std::ranges::copy(out, text.begin());
}

// A position in [0, n], uniform up to 2^-32.
size_t place(uint32_t bits, size_t n) { return size_t((uint64_t(bits) * (n + 1)) >> 32); }

bool hits(uint32_t bits, double rate) { return double(bits) * 0x1p-32 < rate; }

// The predicted text of the document [begin, end) of a window.
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
    const size_t kept = text.size() - size_t(kFimSentinels);
    const auto [first, second] = std::minmax({place(bits[2], kept), place(bits[3], kept)});
    reorder(text, fim, {first, second, hits(bits[1], fim.spm_rate)});
  }
}

}  // namespace athanor
