#include "train/masked_sample.h"

#include <algorithm>

#include "base/error.h"

namespace athanor {
namespace {

constexpr int64_t kMostTokens = 2048;

std::string text_of(const Tokenizer& tokenizer, std::span<const int32_t> ids, TextPlace place) {
  try {
    return tokenizer.decode(ids, place);
  } catch (const Error&) {
    return cat("[", ids.size(), " tokens that the tokenizer next to the data does not have]");
  }
}

}  // namespace

std::string masked_sample(const Dataset& data, const PackingOptions& packing, const SampleOrder& order, int64_t n,
                          const Tokenizer& tokenizer) {
  HostBatch batch(1, data.seq_length(), packing);
  batch.read(0, data, data.locate(order, n), packing);
  std::vector<int32_t> window = batch.tokens;
  if (batch.targets.back() >= 0) window.push_back(batch.targets.back());
  const auto size = std::min<int64_t>(kMostTokens, int64_t(window.size()));
  const auto learnt = [&](int64_t i) { return i > 0 && batch.targets[size_t(i) - 1] >= 0; };
  std::string text;
  for (int64_t begin = 0, end = 0; begin < size; begin = end) {
    const bool here = learnt(begin);
    end = begin;
    while (end < size && learnt(end) == here) ++end;
    const std::string part = text_of(tokenizer, std::span(window).subspan(size_t(begin), size_t(end - begin)),
                                     begin == 0 ? TextPlace::document : TextPlace::inside);
    text += here ? cat(">>", part, "<<") : part;
  }
  const auto all = std::ranges::count_if(batch.targets, [](int32_t target) { return target >= 0; });
  return cat("the first sample of ", data.seq_length(), " tokens, ", all,
             " of them learnt, which are between >> and <<:\n", text, size < int64_t(window.size()) ? " ..." : "");
}

}  // namespace athanor
