// Shard formats: what is accepted, what is refused and how clearly, and what happens to files that change while open.
#include "data/token_file.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include "data_testing.h"

namespace athanor {
namespace {

using namespace testing;

std::vector<int32_t> read_all_tokens(const TokenFile& file) {
  std::vector<int32_t> tokens(size_t(file.count()));
  file.read(0, tokens);
  return tokens;
}

struct TokenFileTest : ::testing::Test {
  TempDir dir;
  std::string shard(const std::string& bytes, const std::string& name = "shard.bin") {
    write_bytes(dir / name, bytes);
    return dir / name;
  }
  std::string refusal(const std::string& bytes, const std::string& dtype = "auto") {
    const std::string path = shard(bytes);
    const std::string message = error_of([&] { TokenFile::open(path, dtype); });
    expect_parts(message, {path});
    return message;
  }
};

TEST_F(TokenFileTest, ReadsVersion1) {
  const TokenFile file = TokenFile::open(shard(llmc<uint16_t>({5, 0, 65535, 50256})));
  EXPECT_EQ(file.layout().format, "llm.c-v1");
  EXPECT_EQ(read_all_tokens(file), (std::vector<int32_t>{5, 0, 65535, 50256}));
}

TEST_F(TokenFileTest, ReadsVersion7) {
  const TokenFile file = TokenFile::open(shard(llmc<uint32_t>({128000, 0, 2147483647})));
  EXPECT_EQ(file.layout().format, "llm.c-v7");
  EXPECT_EQ(read_all_tokens(file), (std::vector<int32_t>{128000, 0, 2147483647}));
}

TEST_F(TokenFileTest, ReadsHeaderlessTokensOfGivenType) {
  EXPECT_EQ(read_all_tokens(TokenFile::open(shard(raw<uint16_t>({7, 65535})), "uint16")),
            (std::vector<int32_t>{7, 65535}));
  EXPECT_EQ(read_all_tokens(TokenFile::open(shard(raw<uint32_t>({7, 100277})), "uint32")),
            (std::vector<int32_t>{7, 100277}));
}

// Checked-in files, made by data/fixtures/make.py and not by our writer.
TEST_F(TokenFileTest, ReadsFixtures) {
  const std::pair<const char*, const char*> cases[] = {
      {"llmc_v1.bin", "auto"},      {"llmc_v7.bin", "auto"}, {"raw_uint16.bin", "uint16"},
      {"raw_uint32.bin", "uint32"}, {"llmq_v2.bin", "auto"}, {"megatron.bin", "auto"},
      {"nanotron.ds", "auto"},      {"olmo.npy", "uint16"},  {"array.npy", "auto"}};
  for (const auto& [name, dtype] : cases) {
    const TokenFile file = TokenFile::open(cat("data/fixtures/", name), dtype, 257);
    ASSERT_EQ(file.count(), 600) << name;
    const auto tokens = read_all_tokens(file);
    for (int64_t i = 0; i < 600; ++i) ASSERT_EQ(tokens[size_t(i)], (i * i + 3 * i + 7) % 257) << name << " " << i;
  }
}

TEST_F(TokenFileTest, ReadsEveryWindowOfAFileLargerThanItsBuffer) {
  const auto tokens = counting(100'000);
  for (const char* dtype : {"uint16", "uint32"}) {
    const bool narrow_items = std::string(dtype) == "uint16";
    const std::string bytes = narrow_items ? raw(tokens) : raw(std::vector<uint32_t>(tokens.begin(), tokens.end()));
    const TokenFile file = TokenFile::open(shard(bytes), dtype);
    for (int64_t at : {0, 1, 16383, 16384, 16385, 32767, 49999}) {
      std::vector<int32_t> window(50'001);
      file.read(at, window);
      for (size_t i = 0; i < window.size(); ++i) ASSERT_EQ(window[i], (at + int64_t(i)) % 60000) << dtype << " " << at;
    }
  }
}

TEST_F(TokenFileTest, RangesOutsideTheFileAreErrors) {
  const TokenFile file = TokenFile::open(shard(llmc<uint16_t>({1, 2, 3})));
  std::vector<int32_t> two(2);
  file.read(1, two);
  EXPECT_EQ(two, (std::vector<int32_t>{2, 3}));
  for (int64_t at : {int64_t{2}, int64_t{3}, int64_t{4}, int64_t{-1}, INT64_MAX, INT64_MIN})
    EXPECT_ERROR(file.read(at, two), "shard.bin", "has 3");
  file.read(3, std::span<int32_t>());
}

TEST_F(TokenFileTest, HeaderCountMustAgreeWithTheSize) {
  for (int32_t count : {2, 4, 0, -3, -1, INT32_MAX, INT32_MIN})
    expect_parts(refusal(llmc<uint16_t>({1, 2, 3}, count)), {"promises", "truncated"});
  expect_parts(refusal(llmc<uint16_t>({1, 2, 3}) + "x"), {"promises 3", "7 bytes follow"});
  expect_parts(refusal(llmc<uint32_t>({1, 2, 3}) + "xy"), {"promises 3", "14 bytes follow"});
  EXPECT_EQ(TokenFile::open(shard(llmc<uint16_t>({}))).count(), 0);
}

// Sparse files: sizes beyond 2^31 cost nothing.
TEST_F(TokenFileTest, CountsBeyond32BitsFollowFromTheFileSize) {
  const int64_t count = (int64_t{1} << 32) + 5;
  const std::string path = shard(llmc<uint16_t>({}, 5));
  std::filesystem::resize_file(path, uint64_t(1024 + 2 * count));
  const TokenFile file = TokenFile::open(path);
  EXPECT_EQ(file.count(), count);
  std::vector<int32_t> tokens(3, -1);
  file.read(count - 3, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 0, 0}));
  EXPECT_THROW(file.read(count - 2, tokens), Error);

  write_bytes(path, llmc<uint16_t>({}, 4));  // differs in the lowest bits
  std::filesystem::resize_file(path, uint64_t(1024 + 2 * count));
  EXPECT_THROW(TokenFile::open(path), Error);
}

TEST_F(TokenFileTest, TruncatedHeadersAreErrors) {
  const std::string whole = llmc<uint16_t>({});
  for (size_t size : {4, 5, 8, 12, 15, 16, 17, 1023})
    expect_parts(refusal(whole.substr(0, size)), {"truncated", cat(size)});
  for (size_t size : {1, 2, 3}) expect_parts(refusal(whole.substr(0, size)), {"expected a token shard"});
}

TEST_F(TokenFileTest, OtherVersionsAreErrors) {
  for (int32_t version : {0, 2, 7, -1})
    expect_parts(refusal(llmc<uint16_t>({1}, 1, version)), {"version 1", cat(version)});
  for (int32_t version : {1, 3}) expect_parts(refusal(llmc<uint32_t>({1}, 1, version)), {"version 7", cat(version)});
}

TEST_F(TokenFileTest, EmptyAndOddFilesAreErrors) {
  for (const char* dtype : {"auto", "uint16", "uint32"}) expect_parts(refusal("", dtype), {"empty"});
  expect_parts(refusal("abc", "uint16"), {"3 bytes", "uint16"});
  expect_parts(refusal("abcdef", "uint32"), {"6 bytes", "uint32"});
}

TEST_F(TokenFileTest, HeaderlessFilesNeedAType) {
  expect_parts(refusal(raw(counting(10))), {"20240520", "dtype", "\"uint16\"", "\"uint32\""});
}

TEST_F(TokenFileTest, TypeMustBeKnownAndMatchTheHeader) {
  expect_parts(refusal(llmc<uint16_t>({1}), "uint32"), {"dtype is given as uint32", "uint16", "auto"});
  expect_parts(refusal(llmc<uint32_t>({1}), "uint16"), {"dtype is given as uint16", "uint32"});
  EXPECT_EQ(TokenFile::open(shard(llmc<uint16_t>({1})), "uint16").count(), 1);
  for (const char* dtype : {"", "u16", "int33", "UINT16"})
    EXPECT_ERROR(TokenFile::open(shard(llmc<uint16_t>({1})), dtype), "dtype", cat('"', dtype, '"'));
}

TEST_F(TokenFileTest, OtherFileFormatsAreNamed) {
  const auto with_magic = [](int32_t magic) { return raw(std::vector<int32_t>{magic, 1, 1, 0, 0}); };
  const std::pair<std::string, const char*> cases[] = {
      {with_magic(20240522), "evaluation"},      {with_magic(20240326), "llm.c model"},
      {with_magic(20240328), "llm.c tokenizer"}, {with_magic(20240327), "optimizer state"},
      {"LITPKDS\1abcdefgh", "lit-gpt"},
  };
  for (const auto& [bytes, what] : cases)
    for (const char* dtype : {"auto", "uint16"}) expect_parts(refusal(bytes, dtype), {what, "convert"});
}

TEST_F(TokenFileTest, DirectoriesPipesAndMissingFilesAreErrors) {
  EXPECT_ERROR(TokenFile::open(dir.path()), dir.path(), "folder");
  EXPECT_ERROR(TokenFile::open(dir / "nothing.bin"), "nothing.bin", "No such file");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(TokenFile::open(dir / "pipe"), "pipe", "regular file");  // and does not hang
}

TEST_F(TokenFileTest, TokensOutsideTheVocabularyAreNamedByPosition) {
  auto tokens = counting(40'000, 0, 100);
  tokens[20'000] = 100;
  tokens[30'000] = 60'000;
  const TokenFile file = TokenFile::open(shard(llmc(tokens)), "auto", 100);
  std::vector<int32_t> window(10'000);
  file.read(10'000, window);
  EXPECT_ERROR(file.read(10'001, window), "shard.bin", "token 20000 is 100", "size 100");
  EXPECT_ERROR(file.read(25'000, window), "token 30000 is 60000");
  file.read_unchecked(25'000, window);
  EXPECT_EQ(window[5'000], 60'000);
}

TEST_F(TokenFileTest, TokensAboveInt32AreAlwaysErrors) {
  const TokenFile file = TokenFile::open(shard(llmc<uint32_t>({1, 0x80000000u, 0xffffffffu})));
  std::vector<int32_t> window(2);
  EXPECT_ERROR(file.read(0, window), "token 1 is 2147483648");
  EXPECT_ERROR(file.read(1, window), "token 1 is 2147483648");
}

// A mapping would end this process with SIGBUS.
TEST_F(TokenFileTest, ShrinkingFileIsAnErrorAndNotSigbus) {
  const std::string path = shard(llmc(counting(100'000)));
  const TokenFile file = TokenFile::open(path);
  std::vector<int32_t> window(100);
  file.read(90'000, window);
  std::filesystem::resize_file(path, 2048);
  EXPECT_ERROR(file.read(90'000, window), path, "201024 bytes at open", "2048 now");
  EXPECT_ERROR(file.read(0, window), "2048 now");  // although these are still there
}

TEST_F(TokenFileTest, GrowingFileIsAnError) {
  const std::string path = shard(llmc(counting(100)));
  const TokenFile file = TokenFile::open(path);
  std::ofstream(path, std::ios::app | std::ios::binary) << "more";
  std::vector<int32_t> window(10);
  EXPECT_ERROR(file.read(0, window), "1224 bytes at open", "1228 now");
}

TEST_F(TokenFileTest, DeletedOrReplacedFileStaysReadable) {
  const std::string path = shard(llmc(counting(100)));
  const TokenFile file = TokenFile::open(path);
  write_bytes(dir / "other", llmc(counting(50, 7)));
  std::filesystem::rename(dir / "other", path);
  std::filesystem::remove(path);
  EXPECT_EQ(read_all_tokens(file)[99], 99);
}

TEST_F(TokenFileTest, ExhaustedFileDescriptorsNameTheRemedy) {
  const std::string path = shard(llmc(counting(10)));
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit before = limit;
  limit.rlim_cur = 40;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<TokenFile> files;
  const std::string message = error_of([&] {
    for (int i = 0; i < 100; ++i) files.push_back(TokenFile::open(path));
  });
  ::setrlimit(RLIMIT_NOFILE, &before);
  expect_parts(message, {path, "ulimit -n"});
}

TEST_F(TokenFileTest, MovedFromFilesOwnNoDescriptor) {
  TokenFile a = TokenFile::open(shard(llmc(counting(10))));
  TokenFile b = std::move(a);
  EXPECT_EQ(read_all_tokens(b).size(), 10u);
  a = TokenFile::open(shard(llmc(counting(20)), "second.bin"));
  std::swap(a, b);
  EXPECT_EQ(read_all_tokens(a).size(), 10u);
  EXPECT_EQ(read_all_tokens(b).size(), 20u);
}

}  // namespace
}  // namespace athanor
