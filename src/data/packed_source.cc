#include "data/packed_source.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace athanor {
namespace {

constexpr int64_t kScanned = 1 << 20;  // tokens per read
constexpr size_t kTables = 4;  // number of cached tables: the samples of a rank come from one window after the other

}  // namespace

PackedSource::PackedSource(const std::vector<TokenFile>& shards, const RowPacking& packing)
    : shards_(shards), packing_(packing), first_document_{0}, rows_{0} {
  for (const TokenFile& shard : shards_) {
    const auto first = int64_t(lengths_.size());
    find_documents(shard);
    first_document_.push_back(int64_t(lengths_.size()));
    if (first < first_document_.back()) require_no_bos(shard, first);
  }
  const auto count = int64_t(lengths_.size());
  Place place;
  for (int64_t begin = 0; begin < count; begin += packing_.documents) {
    first_place_.push_back(place);
    for (int64_t i = begin; i < std::min(begin + packing_.documents, count); ++i) {
      while (i >= first_document_[size_t(place.shard) + 1]) place = {place.shard + 1, 0};
      if (i == begin) first_place_.back() = place;
      place.token += lengths_[size_t(i)];
    }
    rows_.push_back(rows_.back());
    const PackingCounts window =
        count_best_fit(lengths_of(int64_t(first_place_.size()) - 1), packing_.row_tokens, packing_.bos_id >= 0);
    counts_ += window;
    rows_.back() += window.rows;
  }
}

void PackedSource::add_document(const TokenFile& shard, int64_t begin, int64_t end) {
  if (end - begin > std::numeric_limits<int32_t>::max())
    throw Error(cat(shard.path(), ": a document of ", end - begin,
                    " tokens, expected at most 2^31 - 1 for documents.packing: best_fit; is documents.eod_token_id ",
                    packing_.eod_id, " the token that ends a document here?"),
                Exit::usage);
  lengths_.push_back(uint32_t(end - begin));
}

void PackedSource::find_documents(const TokenFile& shard) {
  int64_t begin = 0;
  const auto end_at = [&](int64_t end) {
    if (end > begin) add_document(shard, begin, end);
    begin = std::max(begin, end);
  };
  if (const auto& index = shard.layout().documents) {
    for (int64_t at = 0; at < shard.count(); at += kScanned)
      for (const int64_t end : index->ends_within(at, std::min(kScanned, shard.count() - at))) end_at(end);
  } else {
    std::vector<int32_t> tokens;
    for (int64_t at = 0; at < shard.count(); at += kScanned) {
      tokens.resize(size_t(std::min(kScanned, shard.count() - at)));
      shard.read(at, tokens);
      for (const int64_t end : ends_by_token(tokens, packing_.eod_id)) end_at(at + end);
    }
  }
  end_at(shard.count());
}

// Refuses shards whose documents already begin with the BOS token, which would then occur twice. (In shards whose
// documents begin with the end-of-document token, documents are cut behind it: the first document is only this token.)
void PackedSource::require_no_bos(const TokenFile& shard, int64_t first) const {
  if (packing_.bos_id < 0 || packing_.bos_id == packing_.eod_id || lengths_[size_t(first)] < 2) return;
  int32_t token = 0;
  shard.read(0, {&token, 1});
  if (token == packing_.bos_id)
    throw Error(cat(shard.path(), ": its documents begin with token ", token,
                    ", that of documents.bos_token_id, already: leave ", "documents.bos_token_id out"),
                Exit::usage);
}

std::span<const uint32_t> PackedSource::lengths_of(int64_t window) const {
  const size_t begin = size_t(window * packing_.documents);
  return std::span(lengths_).subspan(begin, std::min(size_t(packing_.documents), lengths_.size() - begin));
}

std::shared_ptr<const PackedSource::Epoch> PackedSource::epoch_of(const PackedRow& row) const {
  const int64_t number = row.position / rows();
  // The epoch has 31 bits of the Philox stream; 32 are the source, and one selects the use of the numbers.
  CHECK(number < int64_t{1} << 31, "epoch ", number);
  const uint64_t stream = row.source << 32 | uint64_t(number) << 1;
  const std::lock_guard lock(mutex_);
  if (epoch_ && epoch_->seed == row.seed && epoch_->stream == stream && epoch_->shuffled == row.shuffled) return epoch_;
  auto epoch = std::make_shared<Epoch>(Epoch{row.seed, stream, row.shuffled, {}, {0}});
  const Permutation order(windows(), row.seed, stream);
  for (int64_t i = 0; i < windows(); ++i) {
    const int64_t window = row.shuffled ? order(i) : i;
    epoch->windows.push_back(window);
    epoch->first_row.push_back(epoch->first_row.back() + rows_[size_t(window) + 1] - rows_[size_t(window)]);
  }
  epoch_ = epoch;
  return epoch;
}

std::shared_ptr<const PackedSource::Table> PackedSource::table_of(int64_t window, uint64_t seed,
                                                                  uint64_t stream) const {
  const std::lock_guard lock(mutex_);
  for (const auto& table : tables_)
    if (table->window == window && table->seed == seed && table->stream == stream) return table;
  const auto lengths = lengths_of(window);
  // Each window of an epoch has its own key: the window number is part of the seed, whose bits Philox mixes.
  const auto bits = philox(seed, stream | 1, uint64_t(window));
  auto table = std::make_shared<Table>(Table{.seed = seed,
                                             .stream = stream,
                                             .window = window,
                                             .rows = best_fit(lengths, {.capacity = packing_.row_tokens,
                                                                        .extra = packing_.bos_id >= 0,
                                                                        .seed = uint64_t(bits[0]) << 32 | bits[1],
                                                                        .stream = uint64_t(bits[2]) << 32 | bits[3]}),
                                             .documents = {}});
  Place place = first_place_[size_t(window)];
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t document = window * packing_.documents + int64_t(i);
    while (document >= first_document_[size_t(place.shard) + 1]) place = {place.shard + 1, 0};
    table->documents.push_back(place);
    place.token += lengths[i];
  }
  if (tables_.size() == kTables) tables_.erase(tables_.begin());
  tables_.push_back(table);
  return table;
}

Window PackedSource::read(const PackedRow& row) const {
  const auto epoch = epoch_of(row);
  const int64_t position = row.position % rows();
  const auto after = std::upper_bound(epoch->first_row.begin(), epoch->first_row.end(), position);
  const auto turn = size_t(after - epoch->first_row.begin() - 1);
  const auto table = table_of(epoch->windows[turn], row.seed, epoch->stream);

  const auto size = size_t(packing_.row_tokens);
  const int64_t padding = std::max<int64_t>(0, packing_.eod_id);
  Window window{.tokens = std::vector<int32_t>(size, int32_t(padding)), .mask = std::vector<uint8_t>(size), .ends = {}};
  size_t at = 0;
  for (const PackedPiece& piece : table->rows.row(position - epoch->first_row[turn])) {
    if (packing_.bos_id >= 0) window.tokens[at++] = int32_t(packing_.bos_id);
    const Place& place = table->documents[size_t(piece.document)];
    const TokenFile& shard = shards_[size_t(place.shard)];
    const auto length = size_t(piece.length);
    shard.read(place.token + piece.begin, std::span(window.tokens).subspan(at, length));
    shard.read_mask(place.token + piece.begin, std::span(window.mask).subspan(at, length));
    at += length;
    window.ends.push_back(int64_t(at));
  }
  return window;
}

}  // namespace athanor
