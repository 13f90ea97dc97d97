#include "data/packing.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace athanor {
namespace {

// Cuts row [0, t) at the ends, without empty pieces.
std::vector<Document> pieces(const std::vector<int64_t>& ends, int64_t t) {
  std::vector<Document> out;
  int64_t begin = 0;
  const auto cut = [&](int64_t end) {
    if (end > begin) out.push_back({int32_t(begin), int32_t(end - begin)});
    begin = std::max(begin, end);
  };
  for (const int64_t end : ends) cut(std::min(end, t));
  cut(t);
  return out;
}

std::vector<Document> chunks_of(int64_t t, const PackingOptions& options) {
  const int64_t length = options.chunk_length > 0 ? options.chunk_length : t;
  std::vector<Document> out;
  for (int64_t begin = 0; begin < t; begin += length)
    out.push_back({int32_t(begin), int32_t(std::min(length, t - begin))});
  return out;
}

// The parts of each document inside the chunks, in order.
std::vector<Document> cut(const std::vector<Document>& documents, const std::vector<Document>& chunks) {
  std::vector<Document> out;
  for (const Document& d : documents)
    for (const Document& chunk : chunks) {
      const int32_t begin = std::max(d.begin, chunk.begin);
      const int32_t end = std::min(d.begin + d.length, chunk.begin + chunk.length);
      if (begin < end) out.push_back({begin, end - begin});
    }
  return out;
}

void restart(std::span<int32_t> positions, const Document& at) {
  std::iota(positions.begin() + at.begin, positions.begin() + at.begin + at.length, 0);
}

}  // namespace

std::vector<int64_t> ends_by_token(std::span<const int32_t> tokens, int64_t eod_id) {
  std::vector<int64_t> ends;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] == eod_id) ends.push_back(int64_t(i) + 1);
  return ends;
}

int64_t pack(const Window& window, const PackingOptions& options, const Row& row) {
  const auto t = int64_t(row.tokens.size());
  CHECK(int64_t(window.tokens.size()) == t + 1 && int64_t(window.mask.size()) == t + 1, "window of ",
        window.tokens.size(), " for a row of ", t);
  std::copy_n(window.tokens.begin(), t, row.tokens.begin());
  for (int64_t i = 0; i < t; ++i)
    row.targets[size_t(i)] = window.mask[size_t(i) + 1] ? window.tokens[size_t(i) + 1] : -1;
  if (options.eod_mask_loss)
    for (const int64_t end : window.ends)
      if (end <= t) row.targets[size_t(end) - 1] = -1;
  if (!options.varies()) return 0;

  std::vector<Document> documents = pieces(window.ends, t);
  const std::vector<Document> chunks = chunks_of(t, options);
  for (const Document& chunk : chunks) restart(row.positions, chunk);
  if (options.reset_position_ids)
    for (const Document& d : documents)
      for (const Document& part : cut({d}, chunks)) restart(row.positions, part);
  std::fill(row.documents.begin(), row.documents.end(), Document{});
  if (!options.reset_attention_mask) documents = {{0, int32_t(t)}};
  int64_t given_up = 0;
  const auto most = size_t(options.max_documents);
  if (documents.size() > most) {
    for (int64_t i = documents[most].begin; i < t; ++i) {
      given_up += row.targets[size_t(i)] >= 0;
      row.targets[size_t(i)] = -1;
    }
    documents[most - 1].length = int32_t(t) - documents[most - 1].begin;
    documents.resize(most);
  }
  documents = cut(documents, chunks);
  CHECK(documents.size() <= row.documents.size(), documents.size(), " parts of a row, planned for ",
        row.documents.size());
  std::copy(documents.begin(), documents.end(), row.documents.begin());
  return given_up;
}

}  // namespace athanor
