// Best-fit packing: every token is placed once, no document that fits into a row is cut, and any key gives the same
// number of rows. The rows of a data set are a pure function of seed and sample number, for any ranks and restarts.
#include "data/best_fit.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include "base/rng.h"
#include "data/loader.h"
#include "data_testing.h"

namespace athanor {
namespace {

using namespace testing;

std::vector<uint32_t> random_lengths(uint64_t seed, size_t count, uint32_t most) {
  std::vector<uint32_t> lengths;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t r = random_bits(seed, 1, i);
    lengths.push_back(r % 16 == 0 ? r % (4 * most) : r % most);  // some longer than a row, some empty
  }
  return lengths;
}

int64_t places_of(std::span<const PackedPiece> row, int64_t extra) {
  int64_t places = 0;
  for (const PackedPiece& piece : row) places += piece.length + extra;
  return places;
}

TEST(BestFit, PlacesEveryTokenOnceAndSplitsOnlyOversizedDocuments) {
  for (const auto& [capacity, extra] : {std::pair{64, 0}, {65, 1}, {4096, 1}, {1, 0}, {2, 1}}) {
    const auto lengths = random_lengths(uint64_t(capacity), 3000, 50);
    const PackedRows packed = best_fit(lengths, {.capacity = capacity, .extra = extra, .seed = 3, .stream = 4});
    std::map<int32_t, std::vector<std::pair<int32_t, int32_t>>> pieces;  // by document
    int64_t unused = 0;
    for (int64_t r = 0; r < packed.rows(); ++r) {
      ASSERT_FALSE(packed.row(r).empty());
      ASSERT_LE(places_of(packed.row(r), extra), capacity);
      unused += capacity - places_of(packed.row(r), extra);
      for (const PackedPiece& p : packed.row(r)) pieces[p.document].emplace_back(p.begin, p.length);
    }
    int64_t cut = 0, documents = 0;
    for (size_t d = 0; d < lengths.size(); ++d) {
      auto& of = pieces[int32_t(d)];
      std::sort(of.begin(), of.end());
      int64_t end = 0;
      for (const auto& [begin, length] : of) {
        ASSERT_EQ(begin, end);
        end += length;
      }
      ASSERT_EQ(end, lengths[d]);
      const int64_t most = capacity - extra;
      ASSERT_EQ(int64_t(of.size()), (lengths[d] + most - 1) / most);
      cut += of.size() > 1;
      documents += lengths[d] > 0;
    }
    const PackingCounts counts = count_best_fit(lengths, capacity, extra);
    EXPECT_EQ(counts.rows, packed.rows());
    EXPECT_EQ(counts.pieces, int64_t(packed.pieces.size()));
    EXPECT_EQ(counts.unused, unused);
    EXPECT_EQ(counts.cut, cut);
    EXPECT_EQ(counts.documents, documents);
  }
  EXPECT_EQ(best_fit({}, {.capacity = 8}).rows(), 0);
  EXPECT_EQ(count_best_fit(std::vector<uint32_t>{0, 0}, 8, 0).rows, 0);
}

// The row with the smallest sufficient space is taken: a plain search gives the same number of rows.
TEST(BestFit, PicksTheFullestRowThatHasSpace) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    auto lengths = random_lengths(seed, 400, 100);
    constexpr int64_t kCapacity = 150;
    std::vector<int64_t> rests, spaces;
    for (const uint32_t length : lengths) {
      for (int64_t left = length; left > 0; left -= kCapacity) rests.push_back(std::min(left, kCapacity));
    }
    std::sort(rests.rbegin(), rests.rend());
    for (const int64_t rest : rests) {
      auto best = spaces.end();
      for (auto space = spaces.begin(); space != spaces.end(); ++space)
        if (*space >= rest && (best == spaces.end() || *space < *best)) best = space;
      if (best == spaces.end())
        spaces.push_back(kCapacity - rest);
      else
        *best -= rest;
    }
    EXPECT_EQ(count_best_fit(lengths, kCapacity, 0).rows, int64_t(spaces.size())) << seed;
  }
}

TEST(BestFit, KeyChangesRowsButNotTheirNumber) {
  const auto lengths = random_lengths(1, 2000, 90);
  const auto packed = [&](uint64_t seed, uint64_t stream) {
    const PackedRows rows = best_fit(lengths, {.capacity = 128, .extra = 1, .seed = seed, .stream = stream});
    std::vector<int32_t> documents;
    for (const PackedPiece& piece : rows.pieces) documents.push_back(piece.document);
    return std::pair(rows.rows(), documents);
  };
  const auto first = packed(1, 1);
  EXPECT_EQ(packed(1, 1), first);
  for (const auto& [seed, stream] : {std::pair{1, 2}, {2, 1}}) {
    const auto other = packed(uint64_t(seed), uint64_t(stream));
    EXPECT_EQ(other.first, first.first);
    EXPECT_NE(other.second, first.second);
  }
}

constexpr int64_t kRowTokens = 31;
constexpr int32_t kEndToken = 0, kBosToken = 7;

// Documents of distinct tokens, so that every token says where it is from; two shards, and a second source.
struct PackedData : ::testing::Test {
  TempDir dir;
  std::vector<std::vector<uint16_t>> documents;  // documents of the first source, with their end-of-document tokens
  PackedData() {
    uint16_t next = 100;
    std::vector<uint16_t> shards[3];
    for (size_t i = 0; i < 500; ++i) {
      std::vector<uint16_t> document;
      for (uint32_t length = random_bits(9, 9, i) % (i % 50 == 0 ? 100 : 20); length > 0; --length)
        document.push_back(next++);
      document.push_back(kEndToken);
      auto& shard = shards[i < 300 ? 0 : i < 450 ? 1 : 2];
      shard.insert(shard.end(), document.begin(), document.end());
      if (i < 450) documents.push_back(document);
    }
    for (const auto& [name, index] : {std::pair{"a0.bin", 0}, {"a1.bin", 1}, {"b.bin", 2}})
      write_bytes(dir / name, llmc(shards[index]));
  }
  Dataset open(int64_t bos = -1, int64_t window = 128, bool one = false) const {
    std::vector<ShardSource> sources = {{dir / "a*.bin", 3}, {dir / "b.bin", 1}};
    if (one) sources.pop_back();
    Dataset data = Dataset::open(sources, kRowTokens, 0);
    data.pack({.documents = window, .eod_id = kEndToken, .bos_id = bos});
    return data;
  }
};

constexpr PackingOptions kPackedRows = {
    .reset_attention_mask = true, .eod_mask_loss = true, .eod_id = kEndToken, .max_documents = 32};

TEST_F(PackedData, EpochPredictsEveryTokenOfEveryDocumentOnce) {
  for (const int64_t bos : {-1, kBosToken}) {
    const Dataset data = open(bos, 100, true);
    std::vector<std::vector<int32_t>> orders;
    for (const int64_t epoch : {0, 3}) {
      std::vector<int32_t> predicted, seen;
      HostBatch batch(1, kRowTokens, kPackedRows);
      for (int64_t n = epoch * data.windows(); n < (epoch + 1) * data.windows(); ++n) {
        batch.read(0, data, data.locate({.seed = 5}, n), kPackedRows);
        if (bos >= 0) {
          EXPECT_EQ(batch.tokens[0], kBosToken);
        }
        for (size_t i = 0; i < size_t(kRowTokens); ++i) {
          if (batch.targets[i] < 0) continue;
          predicted.push_back(batch.targets[i]);
          if (batch.tokens[i] >= 100 && batch.targets[i] >= 100) {
            EXPECT_EQ(batch.tokens[i] + 1, batch.targets[i]);
          }
        }
        seen.push_back(batch.tokens[1]);
      }
      EXPECT_EQ(batch.given_up, 0);
      // With a BOS token in front all tokens are predicted; otherwise all except the first of each document, or of each
      // piece of one.
      std::vector<int32_t> expected;
      for (const auto& document : documents)
        for (size_t i = 0; i < document.size(); ++i)
          if (bos >= 0 || i % (kRowTokens + 1) != 0) expected.push_back(document[i]);
      std::sort(predicted.begin(), predicted.end());
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(predicted, expected) << bos << " " << epoch;
      orders.push_back(seen);
    }
    EXPECT_NE(orders[0], orders[1]);
  }
}

TEST_F(PackedData, RowsDoNotDependOnRanksAndRestarts) {
  const Dataset data = open(kBosToken);
  const auto rows = [&](int rank, int world, int64_t first, int64_t micros) {
    const Dataset own = open(kBosToken);
    Loader loader(own, {.order = {.seed = 5},
                        .first_sample = first,
                        .rows = 2,
                        .ranks = {.rank = rank, .world = world},
                        .packing = kPackedRows});
    std::map<int64_t, std::vector<int32_t>> found;
    for (int64_t m = 0; m < micros; ++m) {
      const HostBatch& batch = loader.next();
      found[batch.first_sample] = batch.tokens;
      found[batch.first_sample].insert(found[batch.first_sample].end(), batch.targets.begin(), batch.targets.end());
    }
    return found;
  };
  const int64_t micros = data.windows();  // twice the epochs' rows
  const auto all = rows(0, 1, 0, micros);
  std::map<int64_t, std::vector<int32_t>> shared;
  for (const int rank : {0, 1, 2}) shared.merge(rows(rank, 3, 0, micros / 3));
  for (const auto& [sample, row] : shared) EXPECT_EQ(row, all.at(sample)) << sample;
  EXPECT_EQ(int64_t(shared.size()), micros / 3 * 3);
  for (const auto& [sample, row] : rows(0, 1, 34, 40)) EXPECT_EQ(row, all.at(sample)) << sample;
}

TEST_F(PackedData, ReportsRowsAndPadding) {
  const Dataset windows = Dataset::open({{dir / "a*.bin"}}, kRowTokens, 0), packed = open(kBosToken, 128, true);
  EXPECT_NE(windows.fingerprint(), packed.fingerprint());
  EXPECT_NE(open(-1, 128, true).fingerprint(), packed.fingerprint());
  EXPECT_NE(open(kBosToken, 64, true).fingerprint(), packed.fingerprint());
  expect_parts(packed.description(), {cat(packed.windows(), " rows of 31"), "best-fit packed: 450 documents",
                                      "% of them cut", "pieces a row", "% of the places unused"});
  EXPECT_TRUE(packed.doubts().empty());
  write_bytes(dir / "c.bin", llmc(std::vector<uint16_t>{kBosToken, 1, 2, 3, kEndToken, kBosToken, 4, 5, kEndToken}));
  Dataset twice = Dataset::open({{dir / "c.bin"}}, 4, 0);
  EXPECT_ERROR(twice.pack({.eod_id = kEndToken, .bos_id = kBosToken}), "c.bin", "begin with token 7",
               "leave documents.bos_token_id out");
}

}  // namespace
}  // namespace athanor
