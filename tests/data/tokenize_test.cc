// Text to shards and back: the byte tokenizer, its descriptor, the shard writer's atomicity, and the held-out split.
#include "data/tokenize.h"

#include "base/rng.h"
#include "data/glob.h"
#include "data/shard_writer.h"
#include "data/token_file.h"
#include "data_testing.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/descriptor.h"
#include "tokenizer/load.h"

namespace athanor {
namespace {

using namespace testing;

std::string random_text(int64_t size, uint64_t seed = 1) {
  std::string text;
  for (int64_t i = 0; i < size; ++i) text += char(random_bits(seed, 2, uint64_t(i)) & 0xff);
  return text;
}

std::vector<std::string> files_in(const TempDir& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// ---- Tokenizer

TEST(ByteTokenizer, DecodingUndoesEncodingOfAnyBytes) {
  const ByteTokenizer t;
  for (const std::string& text : {std::string(), std::string("\0\xff\x80", 3), random_text(10'000)}) {
    const auto ids = t.encode(text);
    EXPECT_EQ(ids.size(), text.size());
    EXPECT_EQ(t.decode(ids), text);
    for (int32_t id : ids) EXPECT_TRUE(0 <= id && id < 256);
  }
  EXPECT_EQ(t.vocab_size(), 257);
  EXPECT_EQ(t.decode(std::vector<int32_t>{72, t.eod_id(), 105}), "H<|endoftext|>i");
  for (int32_t bad : {-1, 257, INT32_MAX}) EXPECT_ERROR(t.decode({&bad, 1}), cat(bad), "vocabulary of 257");
}

TEST(TokenizerDescriptor, RoundTrips) {
  TempDir dir;
  EXPECT_EQ(find_tokenizer(dir / "x.bin"), nullptr);
  write_tokenizer(ByteTokenizer(), dir / "sub");
  EXPECT_EQ(read_bytes(dir / "sub/tokenizer.athanor.json"), "{\"type\":\"byte\",\"vocab_size\":257,\"eod_id\":256}\n");
  EXPECT_EQ(load_tokenizer(dir / "sub")->name(), "byte");
  EXPECT_EQ(load_tokenizer(dir / "sub/tokenizer.athanor.json")->name(), "byte");
  EXPECT_EQ(find_tokenizer(dir / "sub/x.bin")->name(), "byte");
  write_bytes(dir / kTokenizerFile, "{\"type\": \"byte\"}");  // by hand
  EXPECT_EQ(load_tokenizer(dir.path())->vocab_size(), 257);
}

TEST(TokenizerDescriptor, InvalidFilesAreErrors) {
  TempDir dir;
  const std::string path = dir / kTokenizerFile;
  for (const char* bad : {"", "{", "[]", "3", "{\"type\": 3}", "{\"kind\": \"byte\"}", "{\"type\": \"byte\"} x"}) {
    write_bytes(path, bad);
    EXPECT_ERROR(load_tokenizer(path), path, "\"type\"");
  }
  write_bytes(path, "{\"type\": \"wordpiece\"}");
  EXPECT_ERROR(load_tokenizer(path), path, "\"wordpiece\"", "\"byte\"");
  write_bytes(path, "{\"type\": \"byte\", \"vocab_size\": 258}");
  EXPECT_ERROR(load_tokenizer(path), path, "vocab_size", "257", "258");
  write_bytes(path, std::string(1 << 20, ' '));
  EXPECT_ERROR(load_tokenizer(path), path, "65536");
  EXPECT_THROW(load_tokenizer(dir / "none.json"), Error);
}

// ---- Shard writer

TEST(ShardWriter, RoundTripsAndSplits) {
  TempDir dir;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 1000; ++i) ids.push_back(i * 7 % 999);
  for (const auto& [vocab, format] : {std::pair<int64_t, const char*>{65536, "llm.c-v1"}, {65537, "llm.c-v7"}}) {
    ShardWriter writer({.prefix = dir / format + "_", .vocab_size = vocab, .shard_tokens = 300});
    for (size_t i = 0; i < ids.size(); i += 90)
      writer.append(std::span(ids).subspan(i).first(std::min<size_t>(90, ids.size() - i)));
    EXPECT_EQ(writer.tokens(), 1000);
    const auto shards = writer.finish();
    ASSERT_EQ(shards.size(), 4u);
    EXPECT_EQ(shards[3], dir / format + "_000003.bin");
    EXPECT_EQ(tokens_of(shards), ids);
    EXPECT_EQ(TokenFile::open(shards[0]).count(), 300);
    EXPECT_EQ(TokenFile::open(shards[0]).layout().format, format);
  }
}

TEST(ShardWriter, AppendsMoreThanItsBuffer) {
  TempDir dir;
  std::vector<int32_t> ids(1'500'000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i % 70'001);
  ShardWriter writer({.prefix = dir / "x_", .vocab_size = 70'001});
  writer.append(ids);
  EXPECT_EQ(tokens_of(writer.finish()), ids);
}

TEST(ShardWriter, FilesGetTheirNameAtFinishAndAreRemovedOtherwise) {
  TempDir dir;
  const std::vector<int32_t> ids(25, 1);
  {
    ShardWriter writer({.prefix = dir / "x_", .vocab_size = 10, .shard_tokens = 10});
    writer.append(ids);
    EXPECT_EQ(files_in(dir), (std::vector<std::string>{"x_000000.bin.tmp", "x_000001.bin.tmp", "x_000002.bin.tmp"}));
  }
  EXPECT_TRUE(files_in(dir).empty());
  ShardWriter empty({.prefix = dir / "x_", .vocab_size = 10});
  EXPECT_TRUE(empty.finish().empty());
  EXPECT_TRUE(files_in(dir).empty());
}

TEST(ShardWriter, ExistingShardsAreRefusedOrReplacedCompletely) {
  TempDir dir;
  const std::vector<int32_t> ids(25, 1);
  const auto write = [&](bool overwrite, size_t count) {
    ShardWriter writer({.prefix = dir / "x*_", .vocab_size = 10, .shard_tokens = 10, .overwrite = overwrite});
    writer.append(std::span(ids).first(count));
    return writer.finish();
  };
  write(false, 25);
  write_bytes(dir / "x*_000002.bin.bak", "not ours");
  write_bytes(dir / "xy_000005.bin", "not ours");  // x* is no pattern here
  EXPECT_ERROR(write(false, 5), "x*_000000.bin", "exists");
  EXPECT_EQ(tokens_of(write(true, 15)).size(), 15u);
  EXPECT_EQ(files_in(dir),
            (std::vector<std::string>{"x*_000000.bin", "x*_000001.bin", "x*_000002.bin.bak", "xy_000005.bin"}));
}

TEST(ShardWriter, BadTokensAndOptionsAreErrors) {
  TempDir dir;
  ShardWriter writer({.prefix = dir / "x_", .vocab_size = 257});
  for (int32_t bad : {257, -1}) EXPECT_ERROR(writer.append({&bad, 1}), cat(bad), "257");
  for (int64_t size : {int64_t{0}, int64_t{-1}, int64_t{1} << 31})
    EXPECT_ERROR(ShardWriter({.prefix = dir / "y_", .vocab_size = 257, .shard_tokens = size}), cat(size));
  write_bytes(dir / "file", "");
  EXPECT_THROW(ShardWriter({.prefix = dir / "file/x_", .vocab_size = 257}), Error);
}

// Approximates a full disk: writes beyond the file size limit fail.
TEST(ShardWriter, FailedWriteLeavesNoFinalFile) {
  TempDir dir;
  std::string message;
  {
    ShardWriter writer({.prefix = dir / "x_", .vocab_size = 257});
    const FileSizeLimit limit(100'000);
    message = error_of([&] {
      writer.append(std::vector<int32_t>(200'000, 7));
      writer.finish();
    });
  }
  expect_parts(message, {"x_000000.bin.tmp"});
  EXPECT_TRUE(files_in(dir).empty());
}

// ---- tokenize

struct TokenizeTest : ::testing::Test {
  TempDir dir;
  TokenizeOptions options;
  TokenizeTest() {
    options.output_prefix = dir / "out/qs";
    options.documents.block = 100;
    options.documents.valid_every = 5;
  }
  std::string input(const std::string& text) {
    const std::string path = dir / cat("in", options.documents.inputs.size(), ".txt");
    write_bytes(path, text);
    options.documents.inputs.push_back(path);
    return path;
  }
};

TEST_F(TokenizeTest, EveryNthBlockIsHeldOut) {
  const std::string text = random_text(2'350'042);  // several read buffers
  input(text);
  const TokenizeResult result = tokenize(options);
  std::vector<int32_t> train, valid;
  for (size_t i = 0; i < text.size(); ++i) ((i / 100) % 5 == 4 ? valid : train).push_back(uint8_t(text[i]));
  train.push_back(256);
  valid.push_back(256);
  EXPECT_EQ(tokens_of(result.train_shards), train);
  EXPECT_EQ(tokens_of(result.valid_shards), valid);
  EXPECT_EQ(result.train_tokens, int64_t(train.size()));
  EXPECT_EQ(result.valid_tokens, int64_t(valid.size()));
  EXPECT_EQ(result.train_shards, (std::vector<std::string>{dir / "out/qs_train_000000.bin"}));
  EXPECT_EQ(result.valid_shards, (std::vector<std::string>{dir / "out/qs_val_000000.bin"}));
  EXPECT_EQ(find_tokenizer(result.train_shards[0])->name(), "byte");
  expect_parts(result.summary, {"2350042 bytes", "byte", "257", cat(train.size()), cat(valid.size())});
}

TEST_F(TokenizeTest, DocumentsEndInEverySplitTheyReach) {
  input(std::string(150, 'a'));
  input(std::string(300, 'b'));  // up to byte 450: 50 of block 4
  input("");
  input(std::string(100, 'c'));  // 450..550: 50 held out
  const TokenizeResult result = tokenize(options);
  const ByteTokenizer t;
  EXPECT_EQ(t.decode(tokens_of(result.train_shards)), std::string(150, 'a') + "<|endoftext|>" + std::string(250, 'b') +
                                                          "<|endoftext|>" + std::string(50, 'c') + "<|endoftext|>");
  EXPECT_EQ(t.decode(tokens_of(result.valid_shards)),
            std::string(50, 'b') + "<|endoftext|>" + std::string(50, 'c') + "<|endoftext|>");
}

TEST_F(TokenizeTest, ValidEveryZeroHoldsOutNothing) {
  options.documents.valid_every = 0;
  input(random_text(1000));
  const TokenizeResult result = tokenize(options);
  EXPECT_EQ(result.train_tokens, 1001);
  EXPECT_TRUE(result.valid_shards.empty());
}

TEST_F(TokenizeTest, SplitsIntoShards) {
  options.shard_tokens = 64;
  const std::string text = random_text(1000);
  input(text);
  const TokenizeResult result = tokenize(options);
  EXPECT_EQ(result.train_shards.size(), 13u);  // 801 tokens
  EXPECT_EQ(result.valid_shards.size(), 4u);   // 201
}

TEST_F(TokenizeTest, FailuresLeaveNoShards) {
  input(random_text(1000));
  options.documents.inputs.push_back(dir / "missing.txt");
  EXPECT_ERROR(tokenize(options), "missing.txt");
  options.documents.inputs.back() = dir.path();
  EXPECT_ERROR(tokenize(options), dir.path(), "folder");
  EXPECT_TRUE(match_glob(dir / "out/*").empty());
}

// The tokenizer is written before the shards get their names; without shards it goes away again.
TEST_F(TokenizeTest, FailuresLeaveNoTokenizer) {
  const auto left = [&] {
    std::vector<std::string> names;
    for (const std::string& path : match_glob(dir / "out/*"))
      if (const std::string name = std::filesystem::path(path).filename(); !name.starts_with("qs_"))
        names.push_back(name);
    return names;
  };
  const std::vector<std::string> none;
  input("some words");
  options.documents.valid_every = 0;
  options.tokenizer.source = "tests/tokenizer/fixtures/gpt2";
  {
    const FileSizeLimit limit(5'000);  // too little for vocab.json, enough for merges.txt
    EXPECT_ERROR(tokenize(options), "vocab.json");
  }
  EXPECT_EQ(left(), none);
  options.output_format = "megatron";
  options.overwrite = true;
  std::filesystem::create_directories(dir / "out/qs_train_000000.idx");
  EXPECT_ERROR(tokenize(options), "qs_train_000000.idx");
  EXPECT_EQ(left(), none);
  std::filesystem::remove(dir / "out/qs_train_000000.idx");
  tokenize(options);
  EXPECT_EQ(left().size(), 3u);
}

TEST_F(TokenizeTest, RunningTwiceNeedsOverwrite) {
  input(random_text(1000));
  tokenize(options);
  EXPECT_ERROR(tokenize(options), "qs_train_000000.bin", "exists");
  options.overwrite = true;
  EXPECT_EQ(tokenize(options).train_tokens, 801);
}

TEST_F(TokenizeTest, BadOptionsAreErrors) {
  const TokenizeOptions good = options;
  const auto message = [&](auto change) {
    options = good;
    input("some text");
    change(options);
    return error_of([&] { tokenize(options); });
  };
  expect_parts(message([](auto& o) { o.documents.inputs.clear(); }), {"input"});
  expect_parts(message([](auto& o) { o.documents.valid_every = 1; }), {"valid-every", "got 1"});
  expect_parts(message([](auto& o) { o.documents.valid_every = -2; }), {"valid-every", "got -2"});
  expect_parts(message([](auto& o) { o.documents.block = -1; }), {"block", "got -1"});
  expect_parts(message([](auto& o) { o.tokenizer.source = "bite"; }), {"\"bite\""});
  expect_parts(message([](auto& o) { o.output_prefix = ""; }), {"output prefix"});
  expect_parts(message([](auto& o) { o.output_prefix += "/"; }), {"output prefix"});
  expect_parts(message([](auto& o) { o.shard_tokens = 0; }), {"shard tokens"});
  options = good;
  input("");
  EXPECT_ERROR(tokenize(options), "0 bytes", "nothing to train on");
}

}  // namespace
}  // namespace athanor
