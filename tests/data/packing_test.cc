// Laws of rows: what counts, what sees what, and where positions start, against plain loops over the tokens.
#include "data/packing.h"

#include <random>

#include "base/int.h"
#include "data/loader.h"
#include "data_testing.h"

namespace athanor {
namespace {

using namespace testing;

constexpr int32_t kEndOfDocument = 9;

struct Packed {
  std::vector<int32_t> tokens, targets, positions;
  std::vector<Document> documents;
  int64_t given_up = 0;
};

Packed pack_tokens(const std::vector<int32_t>& tokens, PackingOptions options, std::vector<uint8_t> mask = {}) {
  if (mask.empty()) mask.assign(tokens.size(), 1);
  options.eod_id = kEndOfDocument;
  const size_t t = tokens.size() - 1;
  Packed out{std::vector<int32_t>(t, -7), std::vector<int32_t>(t, -7), std::vector<int32_t>(t, -7),
             std::vector<Document>(size_t(options.table_rows()), {-7, -7})};
  const Window window{tokens, mask, ends_by_token(std::span(tokens).first(t), kEndOfDocument)};
  Row row{.tokens = out.tokens, .targets = out.targets};
  if (options.varies()) row.positions = out.positions, row.documents = out.documents;
  out.given_up = pack(window, options, row);
  return out;
}

TEST(Packing, WithoutOptionsTargetsAreTheFollowingTokens) {
  const Packed p = pack_tokens({1, 2, 9, 3, 9}, {});
  EXPECT_EQ(p.tokens, (std::vector<int32_t>{1, 2, 9, 3}));
  EXPECT_EQ(p.targets, (std::vector<int32_t>{2, 9, 3, 9}));
  EXPECT_EQ(p.given_up, 0);
}

TEST(Packing, MaskAppliesToThePredictedToken) {
  EXPECT_EQ(pack_tokens({1, 2, 3, 4}, {}, {0, 1, 0, 1}).targets, (std::vector<int32_t>{2, -1, 4}));
}

// Megatron's get_ltor_masks_and_position_ids: loss_mask[data == eod] = 0 where data are the inputs.
TEST(Packing, EodMaskLossIgnoresPredictionsAfterEod) {
  EXPECT_EQ(pack_tokens({1, 9, 9, 2, 9}, {.eod_mask_loss = true}).targets, (std::vector<int32_t>{9, -1, -1, 9}));
}

TEST(Packing, DocumentsEndAfterTheirEod) {
  const Packed p = pack_tokens({1, 2, 9, 3, 9, 9, 4, 5, 9},
                               {.reset_attention_mask = true, .reset_position_ids = true, .max_documents = 6});
  EXPECT_EQ(p.documents, (std::vector<Document>{{0, 3}, {3, 2}, {5, 1}, {6, 2}, {}, {}}));
  EXPECT_EQ(p.positions, (std::vector<int32_t>{0, 1, 2, 0, 1, 0, 0, 1}));
  EXPECT_EQ(p.targets, (std::vector<int32_t>{2, 9, 3, 9, 9, 4, 5, 9}));
}

TEST(Packing, PositionsAndAttentionResetIndependently) {
  const Packed attention = pack_tokens({1, 9, 2, 3}, {.reset_attention_mask = true, .max_documents = 2});
  EXPECT_EQ(attention.positions, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(attention.documents, (std::vector<Document>{{0, 2}, {2, 1}}));
  const Packed positions = pack_tokens({1, 9, 2, 3}, {.reset_position_ids = true});
  EXPECT_EQ(positions.positions, (std::vector<int32_t>{0, 1, 0}));
  EXPECT_EQ(positions.documents, (std::vector<Document>{{0, 3}}));
}

TEST(Packing, RowEndingWithItsDocumentHasNoEmptyOne) {
  const Packed p = pack_tokens({1, 2, 9, 5}, {.reset_attention_mask = true, .max_documents = 3});
  EXPECT_EQ(p.documents, (std::vector<Document>{{0, 3}, {}, {}}));
}

// The last document in the table extends to the end of the row, and tokens beyond the limit are not predicted.
TEST(Packing, DocumentsBeyondTheSpanTableAreMasked) {
  const Packed p = pack_tokens({1, 9, 2, 9, 3, 9, 4, 5}, {.reset_attention_mask = true, .max_documents = 2});
  EXPECT_EQ(p.documents, (std::vector<Document>{{0, 2}, {2, 5}}));
  EXPECT_EQ(p.targets, (std::vector<int32_t>{9, 2, 9, 3, -1, -1, -1}));
  EXPECT_EQ(p.given_up, 3);
  const Packed one = pack_tokens({1, 9, 2, 9}, {.reset_attention_mask = true, .max_documents = 1});
  EXPECT_EQ(one.documents, (std::vector<Document>{{0, 3}}));
  EXPECT_EQ(one.targets, (std::vector<int32_t>{9, 2, -1}));
}

// Predictions across the border of two chunks count: a chunk is a sequence, whose last token is followed by the next's.
TEST(Packing, ChunksAreSeparateSequences) {
  const std::vector<int32_t> tokens = {1, 9, 2, 3, 4, 9, 5, 6};
  const Packed plain = pack_tokens(tokens, {.max_chunks = 3, .chunk_length = 3});
  EXPECT_EQ(plain.documents, (std::vector<Document>{{0, 3}, {3, 3}, {6, 1}}));
  EXPECT_EQ(plain.positions, (std::vector<int32_t>{0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(plain.targets, (std::vector<int32_t>{9, 2, 3, 4, 9, 5, 6}));
  const Packed apart =
      pack_tokens(tokens, {.reset_attention_mask = true, .max_documents = 3, .max_chunks = 3, .chunk_length = 3});
  EXPECT_EQ(apart.documents, (std::vector<Document>{{0, 2}, {2, 1}, {3, 3}, {6, 1}, {}}));
  EXPECT_EQ(apart.positions, plain.positions);
  const Packed reset =
      pack_tokens(tokens, {.reset_position_ids = true, .eod_mask_loss = true, .max_chunks = 3, .chunk_length = 3});
  EXPECT_EQ(reset.documents, (std::vector<Document>{{0, 3}, {3, 3}, {6, 1}}));
  EXPECT_EQ(reset.positions, (std::vector<int32_t>{0, 1, 0, 0, 1, 2, 0}));
  EXPECT_EQ(reset.targets, (std::vector<int32_t>{9, -1, 3, 4, 9, -1, 6}));
}

// Chunks do not move targets, and do not affect the limit of documents; one chunk of the row's length is the row.
TEST(Packing, ChunksKeepTargetsAndTheDocumentLimit) {
  const std::vector<int32_t> tokens = {1, 9, 2, 9, 3, 9, 4, 5};
  const PackingOptions whole{.reset_attention_mask = true, .reset_position_ids = true, .max_documents = 2};
  const Packed want = pack_tokens(tokens, whole);
  for (const int64_t length : {0, 7, 2}) {
    PackingOptions o = whole;
    o.max_chunks = 4, o.chunk_length = length;
    Packed got = pack_tokens(tokens, o);
    EXPECT_EQ(got.targets, want.targets) << length;
    EXPECT_EQ(got.given_up, want.given_up) << length;
    if (length == 2) continue;
    EXPECT_EQ(got.positions, want.positions) << length;
    got.documents.resize(2);
    EXPECT_EQ(got.documents, want.documents) << length;
  }
}

// For any tokens: a counted prediction is in the document of its own token, or in that document's part within the
// chunk, and attention sees nothing else.
TEST(Packing, EveryTargetSeesExactlyItsDocument) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<int32_t> tokens(2 + random() % 40);
    for (int32_t& t : tokens) t = random() % 4 ? int32_t(random() % 9) : kEndOfDocument;
    const auto most = int64_t(1 + random() % 8);
    const auto t = int64_t(tokens.size()) - 1;
    const int64_t shortest = 1 + int64_t(random() % 8), length = round % 2 ? t : shortest + int64_t(random() % 4);
    const Packed p = pack_tokens(tokens, {.reset_attention_mask = true,
                                          .reset_position_ids = true,
                                          .max_documents = most,
                                          .max_chunks = div_ceil(t, shortest),
                                          .chunk_length = length});
    int32_t begin = 0;
    int64_t ignored = 0;
    for (size_t i = 0; i < p.tokens.size(); ++i) {
      ignored += p.targets[i] < 0;
      if (int64_t(i) % length == 0) begin = int32_t(i);
      if (p.targets[i] >= 0) {
        EXPECT_EQ(p.targets[i], tokens[i + 1]);
        EXPECT_EQ(p.positions[i], int32_t(i) - begin);
        const auto holds = [&](const Document& d) { return d.begin <= int32_t(i) && int32_t(i) < d.begin + d.length; };
        const auto d = std::find_if(p.documents.begin(), p.documents.end(), holds);
        ASSERT_NE(d, p.documents.end());
        EXPECT_EQ(d->begin, begin);
      }
      if (tokens[i] == kEndOfDocument) begin = int32_t(i) + 1;
    }
    EXPECT_EQ(ignored, p.given_up);
    int32_t covered = 0;
    for (const Document& d : p.documents) {
      if (d.length > 0) {
        EXPECT_EQ(d.begin, covered);
      }
      covered += d.length;
    }
    EXPECT_EQ(covered, int32_t(p.tokens.size()));
  }
}

// The index and the EOD token give the same documents through the loader; masks come from a file.
TEST(Packing, IndexAndEodTokenGiveTheSameDocuments) {
  TempDir dir;
  const std::vector<uint16_t> tokens = {1, 2, 9, 3, 9, 4, 5, 6, 9, 7, 8, 1, 2};
  write_bytes(dir / "a.ds", raw(tokens));
  write_bytes(dir / "b.bin", llmc(tokens));
  write_bytes(dir / "a.ds.index", raw(std::vector<uint64_t>{3, 5, 9, 13}));
  const PackingOptions options{.reset_attention_mask = true,
                               .reset_position_ids = true,
                               .eod_mask_loss = true,
                               .eod_id = kEndOfDocument,
                               .max_documents = 4};
  const auto batch_of = [&](const std::string& path, int64_t eod) {
    const Dataset data = Dataset::open({{path, 1, path.ends_with("ds") ? "uint16" : "auto"}}, 6, 0);
    PackingOptions o = options;
    o.eod_id = eod;
    Loader loader(data, {.order = {.shuffled = false}, .rows = 2, .packing = o});
    return loader.next();
  };
  const HostBatch by_index = batch_of(dir / "a.ds", -1), by_token = batch_of(dir / "b.bin", kEndOfDocument);
  EXPECT_EQ(by_index.documents, (std::vector<Document>{{0, 3}, {3, 2}, {5, 1}, {}, {0, 3}, {3, 3}, {}, {}}));
  EXPECT_EQ(by_index.positions, (std::vector<int32_t>{0, 1, 2, 0, 1, 0, 0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(by_index.targets, (std::vector<int32_t>{2, 9, -1, 9, -1, 5, 6, 9, -1, 8, 1, 2}));
  EXPECT_EQ(by_token.documents, by_index.documents);
  EXPECT_EQ(by_token.targets, by_index.targets);
  EXPECT_EQ(by_token.positions, by_index.positions);
  write_bytes(dir / "b.bin.loss", std::string("\1\0\1\1\1\1\1\1\1\1\1\1\0", 13));
  EXPECT_EQ(batch_of(dir / "b.bin", kEndOfDocument).targets,
            (std::vector<int32_t>{-1, 9, -1, 9, -1, 5, 6, 9, -1, 8, 1, -1}));
}

// A shard that is cut while a run reads it ends the run with its name; what was read before is not skipped.
TEST(Packing, ShardTruncatedDuringReadingIsNamed) {
  TempDir dir;
  write_bytes(dir / "a.bin", llmc(counting(100'000)));
  const Dataset data = Dataset::open({{dir / "a.bin"}}, 16, 0);
  Loader loader(data, {.rows = 4, .depth = 2});
  loader.next();
  std::filesystem::resize_file(dir / "a.bin", 4096);
  const std::string message = error_of([&] {
    for (int i = 0; i < 10; ++i) loader.next();
  });
  // A read that is under way may itself find the new end.
  expect_parts(message,
               {"a.bin", message.find("4096 now") == std::string::npos ? "the file was truncated" : "4096 now"});
}

}  // namespace
}  // namespace athanor
