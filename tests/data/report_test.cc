// The n-gram losses against theory, and the reports of `data info` and `data verify` on good and bad shards.
#include "data/report.h"

#include <array>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/rng.h"
#include "data/ngram.h"
#include "data_testing.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/load.h"

namespace athanor {
namespace {

using namespace testing;

// ---- n-grams

TEST(Ngram, IndependentTokensHaveTheirEntropyAtEveryOrder) {
  std::vector<int32_t> tokens;  // P(0) = 1/2, P(1) = P(2) = 1/4
  for (uint64_t i = 0; i < 220'000; ++i) tokens.push_back(int32_t(std::max(0, int(random_bits(1, 2, i) % 4) - 1)));
  const NgramBaselines b = ngram_baselines(std::span(tokens).first(200'000), std::span(tokens).last(20'000), 3);
  EXPECT_DOUBLE_EQ(b.uniform, std::log(3.0));
  for (double loss : {b.unigram, b.bigram, b.trigram}) EXPECT_NEAR(loss, 1.5 * std::log(2.0), 0.01);
  EXPECT_EQ(b.train_tokens, 200'000);
  EXPECT_EQ(b.valid_tokens, 20'000);
}

// A chain where two tokens decide the third: c = (a + b) mod 5, with an error in one of ten.
TEST(Ngram, OnlyTheTrigramSeesSecondOrderDependence) {
  std::vector<int32_t> tokens = {1, 2};
  for (uint64_t i = 2; i < 220'000; ++i) {
    const bool noise = random_bits(1, 2, i) % 10 == 0;
    tokens.push_back(noise ? int32_t(random_bits(1, 3, i) % 5) : (tokens[i - 1] + tokens[i - 2]) % 5);
  }
  const NgramBaselines b = ngram_baselines(std::span(tokens).first(200'000), std::span(tokens).last(20'000), 5);
  EXPECT_NEAR(b.unigram, std::log(5.0), 0.02);
  EXPECT_NEAR(b.bigram, std::log(5.0), 0.02);
  EXPECT_NEAR(b.trigram, -0.92 * std::log(0.92) - 0.08 * std::log(0.02), 0.03);
}

// The loss with the best weights that a search on the validation tokens themselves finds, with counts by std::map.
double best_trigram(const std::vector<int32_t>& train, const std::vector<int32_t>& valid, int64_t vocab) {
  std::map<std::vector<int32_t>, double> count;
  const auto gram = [](const std::vector<int32_t>& tokens, size_t end, size_t n) {
    return std::vector<int32_t>(tokens.begin() + int64_t(end - n), tokens.begin() + int64_t(end));
  };
  for (size_t end = 1; end <= train.size(); ++end)
    for (size_t n = 1; n <= std::min<size_t>(3, end); ++n) ++count[gram(train, end, n)];
  std::vector<std::array<double, 3>> p;
  for (size_t i = 2; i < valid.size(); ++i) {
    std::array<double, 3>& at = p.emplace_back();
    at[0] = (count[gram(valid, i + 1, 1)] + 1) / double(int64_t(train.size()) + vocab);
    for (size_t n = 1; n <= 2; ++n) {
      const double context = count[gram(valid, i, n)];
      at[n] = context > 0 ? count[gram(valid, i + 1, n + 1)] / context : at[n - 1];
    }
  }
  double best = INFINITY;
  for (double one = 0.01; one < 1; one += 0.02)
    for (double two = 0; one + two < 1; two += 0.02) {
      double loss = 0;
      for (const auto& at : p) loss -= std::log(one * at[0] + two * at[1] + (1 - one - two) * at[2]);
      best = std::min(best, loss / double(p.size()));
    }
  return best;
}

// Some 64 tokens that repeat, sometimes interrupted: contexts say nearly everything.
TEST(Ngram, InterpolationIsNearlyOptimalOnASmallCorpus) {
  for (const size_t size : {size_t{1000}, size_t{5000}, size_t{20'000}}) {
    std::vector<int32_t> tokens;
    const auto drawn = [&](int64_t of) { return int32_t(random_bits(7, 8, tokens.size()) % uint64_t(of)); };
    while (tokens.size() < size + 5000)
      if (random_bits(9, 10, tokens.size()) % 10 < 6)
        for (int i = 0; i < 64; ++i) tokens.push_back(int32_t(random_bits(1, 2, uint64_t(i)) % 256));
      else
        for (int i = 0; i < 16; ++i) tokens.push_back(drawn(256));
    const std::vector<int32_t> train(tokens.begin(), tokens.begin() + int64_t(size));
    const std::vector<int32_t> valid(tokens.begin() + int64_t(size), tokens.begin() + int64_t(size) + 5000);
    const double got = ngram_baselines(train, valid, 257).trigram, best = best_trigram(train, valid, 257);
    EXPECT_GT(got, best - 1e-3) << size;
    EXPECT_LT(got, 1.03 * best) << size;
  }
}

TEST(Ngram, UnseenTokensHaveFiniteLoss) {
  const std::vector<int32_t> train(1000, 3), valid = {9, 3, 9, 200, 3, 3};
  const NgramBaselines b = ngram_baselines(train, valid, 257);
  for (double loss : {b.unigram, b.bigram, b.trigram}) {
    EXPECT_TRUE(std::isfinite(loss));
    EXPECT_GT(loss, 1);
    EXPECT_LT(loss, 20);
  }
  EXPECT_TRUE(std::isfinite(ngram_baselines(valid, valid, 257).trigram));
  expect_parts(to_string(b), {"uniform 5.549", "1000 training", "6 validation"});
}

TEST(Ngram, SupportsLargeVocabularies) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 60'000; ++i) tokens.push_back((i % 2000) * 1000);
  const NgramBaselines b = ngram_baselines(tokens, tokens, 2'000'000);
  EXPECT_GT(b.unigram, 7);
  EXPECT_LT(b.bigram, 0.2);  // the next one is certain
}

TEST(Ngram, InvalidTokenStreamsAreErrors) {
  const std::vector<int32_t> good = {1, 2, 3, 4}, little = {1, 2}, outside = {1, 2, 257}, negative = {1, 2, -1};
  EXPECT_ERROR(ngram_baselines(little, good, 257), "training", "got 2");
  EXPECT_ERROR(ngram_baselines(good, little, 257), "validation", "got 2");
  EXPECT_ERROR(ngram_baselines(outside, good, 257), "257");
  EXPECT_ERROR(ngram_baselines(good, negative, 257), "-1");
  for (int64_t vocab : {int64_t{0}, (int64_t{1} << 21) + 1})
    EXPECT_ERROR(ngram_baselines(good, good, vocab), cat(vocab));
}

// ---- Reports

struct ReportTest : ::testing::Test {
  TempDir dir;
  ShardReportOptions all() const {
    ShardReportOptions options;
    options.path_globs = {dir / "*.bin"};
    return options;
  }
  void text_shard(const std::string& name, const std::string& text) {
    std::vector<uint16_t> tokens;
    for (int32_t id : ByteTokenizer().encode(text)) tokens.push_back(uint16_t(id));
    write_bytes(dir / name, llmc(tokens));
  }
};

// The text, which names a problem exactly where `data info` is to fail.
std::string info_of(const ShardReportOptions& options) {
  const DataInfo info = data_info(options);
  EXPECT_EQ(info.sound, info.text.find("problem: ") == std::string::npos) << info.text;
  return info.text;
}

TEST_F(ReportTest, InfoReportsCountsFrequenciesAndText) {
  text_shard("a.bin", "aaaaaabb\n\x1b[31m red");
  text_shard("b.bin", "cc");
  write_tokenizer(ByteTokenizer(), dir.path());
  const std::string info = info_of(all());
  expect_parts(info, {"a.bin: llm.c-v1, 18 tokens", "1060 bytes", "2 shard(s), 20 tokens", "distinct ids",
                      "vocabulary 257", "30.00 %  97  \"a\"", "starts: \"aaaaaabb\\n\\x1b[31m red\""});
  EXPECT_EQ(info.find('\x1b'), std::string::npos) << "control characters reach the terminal";
  EXPECT_EQ(info.find("problem"), std::string::npos);
}

TEST_F(ReportTest, InfoCountsDocumentsByEodToken) {
  write_bytes(dir / "a.bin", llmc<uint16_t>({1, 2, 9, 3, 9, 9, 4}));  // lengths 3, 2, 1 and 1 + 2 over the border
  write_bytes(dir / "b.bin", llmc<uint16_t>({5, 9, 6, 7, 8, 6}));     // and 4 that the data end with
  ShardReportOptions options = all();
  expect_parts(info_of(options), {"documents: unknown"});
  options.eod_id = 9;
  expect_parts(info_of(options), {"documents: 5 (by token 9), mean 2.6 tokens, shortest 1, longest 4"});
  write_bytes(dir / "a.bin", llmc<uint16_t>({9, 1, 2, 9, 3, 4, 5}));  // the same token before each document
  write_bytes(dir / "b.bin", llmc<uint16_t>({9, 1}));
  expect_parts(info_of(options), {"documents: 3 (by token 9), mean 3.0 tokens, shortest 2, longest 4"});
}

TEST_F(ReportTest, InfoCountsDocumentsByIndexAndMaskedTokens) {
  ShardReportOptions options;
  options.path_globs = {"data/fixtures/megatron.bin", "data/fixtures/nanotron.ds"};
  options.tokenizer = "byte";
  expect_parts(info_of(options),
               {"megatron.bin: megatron-uint16, 600 tokens, 1200 bytes, 4 documents\n", "4 documents, loss mask\n",
                "documents: 8 (by the index), mean 150.0 tokens, shortest 0, longest 250", "vocabulary 257",
                "loss mask: 200 of 1200", "starts: \""});
}

TEST_F(ReportTest, InfoListsProblemsWithoutThrowing) {
  write_bytes(dir / "a.bin", llmc<uint16_t>({1, 300, 2}));
  write_bytes(dir / "b.bin", llmc<uint16_t>({1, 2}).substr(0, 1026));
  write_bytes(dir / "c.bin", llmc<uint32_t>({1, 0xffffffffu}));
  write_tokenizer(ByteTokenizer(), dir.path());
  expect_parts(info_of(all()), {"problem:", "b.bin", "promises 2", "problem: 2 of the tokens", "outside the vocabulary",
                                "id 300 is outside", "2 shard(s), 5 tokens"});
}

TEST_F(ReportTest, InfoAndVerifyQuestionTheWidthOfHeaderlessTokens) {
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < 200; ++i) tokens.push_back(30 + i);
  write_bytes(dir / "a.bin", raw(tokens));
  ShardReportOptions options = all();
  options.dtype = "uint16";
  options.vocab_size = 257;
  expect_parts(info_of(options), {"problem: ", "a.bin: every second token is 0"});
  EXPECT_ERROR(data_verify(options), "a.bin: every second token is 0");
  options.dtype = "uint32";
  EXPECT_EQ(info_of(options).find("problem"), std::string::npos);
}

TEST_F(ReportTest, InfoHandlesOnlyDamagedOrEmptyShards) {
  write_bytes(dir / "a.bin", "nonsense, not tokens");
  expect_parts(info_of(all()), {"0 shard(s), 0 tokens", "problem:", "a.bin"});
  write_bytes(dir / "a.bin", llmc<uint16_t>({}));
  expect_parts(info_of(all()), {"1 shard(s), 0 tokens"});
  EXPECT_TRUE(data_info(all()).sound);
}

TEST_F(ReportTest, InfoFailsForATruncatedShardAndReportsTheOthers) {
  text_shard("a.bin", "aaaa");
  text_shard("b.bin", "bb");
  EXPECT_TRUE(data_info(all()).sound);
  std::filesystem::resize_file(dir / "b.bin", 1026);
  const DataInfo info = data_info(all());
  EXPECT_FALSE(info.sound);
  expect_parts(info.text, {"a.bin: llm.c-v1, 4 tokens", "total: 1 shard(s), 4 tokens", "problem: ", "b.bin"});
}

TEST_F(ReportTest, InfoReportsNgramLosses) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "the cat sat. ";
  text_shard("a.bin", text);
  text_shard("b.valid", "the cat sat. the cat");
  ShardReportOptions options = all();
  options.ngram = true;
  EXPECT_ERROR(data_info(options), "--ngram", "--vocab-size");
  options.vocab_size = 257;
  expect_parts(info_of(options), {"uniform 5.549", "24700 training", "1300 validation"});
  options.ngram_valid_glob = dir / "*.valid";
  expect_parts(info_of(options), {"26000 training", "20 validation"});
}

TEST_F(ReportTest, VerifyReadsEverything) {
  write_bytes(dir / "a.bin", llmc(counting(700'000, 0, 50'000)));
  write_bytes(dir / "b.bin", llmc(counting(3)));
  ShardReportOptions options = all();
  options.vocab_size = 50'000;
  expect_parts(data_verify(options), {"2 shard(s), 700003 tokens"});
}

TEST_F(ReportTest, VerifyNamesEveryBadRangeAndFile) {
  auto tokens = counting(700'000, 0, 50'000);
  tokens[5] = 50'000;
  for (size_t i = 262'140; i < 262'150; ++i) tokens[i] = uint16_t(50'001 + i % 10);  // across a chunk's border
  tokens.back() = 65'535;
  write_bytes(dir / "a.bin", llmc(tokens));
  write_bytes(dir / "b.bin", "");
  write_bytes(dir / "c.bin", llmc(counting(3)));
  write_bytes(dir / "d.bin", llmc<uint32_t>({7, 0x80000000u}));
  ShardReportOptions options = all();
  options.vocab_size = 50'000;
  const std::string message = error_of([&] { data_verify(options); });
  expect_parts(message, {"a.bin: token 5 (largest 50000)", "a.bin: tokens 262140 to 262149 (largest 50010)",
                         "a.bin: token 699999 (largest 65535)", "size 50000", "b.bin", "empty",
                         "d.bin: token 1 (largest 2147483648)"});
  EXPECT_EQ(message.find("c.bin"), std::string::npos);
}

TEST_F(ReportTest, VerifyLimitsTheListOfProblems) {
  std::vector<uint16_t> tokens;
  for (int i = 0; i < 10'000; ++i) tokens.push_back(i % 2 ? 5 : 500);
  write_bytes(dir / "a.bin", llmc(tokens));
  ShardReportOptions options = all();
  options.vocab_size = 257;
  const std::string message = error_of([&] { data_verify(options); });
  expect_parts(message, {"token 0 ", "token 38 ", "and 4980 more ranges"});
  EXPECT_LT(message.size(), 10'000u);
}

TEST_F(ReportTest, VerifyUsesTheVocabularyOfTheDescriptor) {
  write_bytes(dir / "a.bin", llmc<uint16_t>({256, 257}));
  EXPECT_NO_THROW(data_verify(all()));
  write_tokenizer(ByteTokenizer(), dir.path());
  EXPECT_ERROR(data_verify(all()), "token 1 (largest 257)");
}

TEST_F(ReportTest, ShardsNamedTwiceAreRefused) {
  text_shard("a.bin", "some text");
  text_shard("b.bin", "more text");
  std::filesystem::create_symlink("a.bin", dir / "link.bin");
  ShardReportOptions options;
  for (const std::vector<std::string>& globs : {std::vector{dir / "a.bin", dir / "a.bin"},
                                                {dir / "b.bin", dir / "[ab].bin"},
                                                {dir / "a.bin", dir / "./a.bin"},
                                                {dir / "[al]*.bin"}}) {
    options.path_globs = globs;
    for (const auto report :
         {+[](const ShardReportOptions& o) { data_info(o); }, +[](const ShardReportOptions& o) { data_verify(o); }})
      EXPECT_ERROR(report(options), "expected each shard once", ".bin twice", "name it once");
  }
  options.path_globs = {dir / "a.bin", dir / "b.bin"};
  expect_parts(info_of(options), {"2 shard(s)"});
}

TEST_F(ReportTest, HeaderlessShardsNeedTheirType) {
  write_bytes(dir / "a.bin", "nonsense, not tokens");
  expect_parts(info_of(all()), {"a.bin", "\"uint16\" or \"uint32\", as --dtype"});
  write_bytes(dir / "a.ds", "tokens");
  ShardReportOptions options;
  options.path_globs = {dir / "a.ds"};
  expect_parts(info_of(options), {"a.ds", "\"uint16\" or \"uint32\", as --dtype"});
}

TEST_F(ReportTest, NoFilesIsAnError) {
  EXPECT_THROW(data_info(all()), Error);
  EXPECT_THROW(data_verify({}), Error);
}

}  // namespace
}  // namespace athanor
