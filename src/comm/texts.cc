#include "comm/texts.h"

#include <algorithm>

namespace athanor {
namespace {

Tensor bytes_of(std::string& text) { return {text.data(), DType::u8, {int64_t(text.size())}}; }

}  // namespace

std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine) {
  std::vector<int64_t> sizes(size_t(ranks.size()));
  auto size = int64_t(mine.size());
  ranks.all_gather({sizes.data(), DType::i64, {ranks.size()}}, {&size, DType::i64, {1}}, Stream::compute);
  const auto longest = size_t(std::max<int64_t>(1, *std::max_element(sizes.begin(), sizes.end())));
  std::string padded = mine, all(longest * sizes.size(), '\0');
  padded.resize(longest);
  ranks.all_gather(bytes_of(all), bytes_of(padded), Stream::compute);
  std::vector<std::string> texts;
  for (size_t r = 0; r < sizes.size(); ++r) texts.push_back(all.substr(r * longest, size_t(sizes[r])));
  return texts;
}

std::string first_text(Communicator& ranks, const std::string& mine) {
  for (const std::string& text : gather_texts(ranks, mine))
    if (!text.empty()) return text;
  return "";
}

std::string share_text(Communicator& ranks, const std::string& text) {
  auto size = int64_t(text.size());
  ranks.broadcast({&size, DType::i64, {1}}, 0, Stream::compute);
  std::string all = text;
  all.resize(size_t(size));
  ranks.broadcast(bytes_of(all), 0, Stream::compute);
  return all;
}

}  // namespace athanor
