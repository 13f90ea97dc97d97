// Laws of a data set: every window once an epoch, overlap by one token, proportions, fingerprints, and early errors.
#include "data/dataset.h"

#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include "data_testing.h"

namespace athanor {
namespace {

using namespace testing;

constexpr int64_t kT = 8;

struct DatasetTest : ::testing::Test {
  TempDir dir;
  DatasetTest() {
    write_bytes(dir / "a_000000.bin", llmc(counting(100, 0)));    // 12 windows
    write_bytes(dir / "a_000001.bin", llmc(counting(8, 1000)));   // none: one token short
    write_bytes(dir / "a_000002.bin", llmc(counting(50, 2000)));  // 6
    write_bytes(dir / "b.bin", raw(counting(9, 3000)));           // 1
  }
  Dataset open_a(int64_t vocab = 0) const { return Dataset::open({{dir / "a_*.bin"}}, kT, vocab); }
  Dataset open_ab(double b_weight = 1) const {
    return Dataset::open({{dir / "a_*.bin", 1}, {dir / "b.bin", b_weight, "uint16"}}, kT, 0);
  }
};

std::vector<int32_t> window(const Dataset& data, const SampleOrder& order, int64_t n) {
  std::vector<int32_t> tokens(size_t(data.seq_length())), targets(tokens.size());
  data.read_row(data.locate(order, n), data.whole_rows(), {.tokens = tokens, .targets = targets});
  tokens.push_back(targets.back());
  return tokens;
}

TEST_F(DatasetTest, CountsWindowsThatDoNotCrossShards) {
  const Dataset data = open_a();
  EXPECT_EQ(data.windows(), 18);
  EXPECT_EQ(data.tokens(), 158);
  EXPECT_EQ(Dataset::open({{dir / "a_000000.bin"}}, 99, 0).windows(), 1);
  EXPECT_EQ(Dataset::open({{dir / "a_000000.bin"}}, 33, 0).windows(), 3);
}

TEST_F(DatasetTest, ShardsOfOtherTokenizersAreFound) {
  const auto put = [&](const std::string& folder, const std::string& descriptor) {
    std::filesystem::create_directory(dir / folder);
    write_bytes(dir / (folder + "/x.bin"), llmc(counting(100, 0)));
    if (!descriptor.empty()) write_bytes(dir / (folder + "/tokenizer.athanor.json"), descriptor);
    return dir / (folder + "/x.bin");
  };
  const std::string byte = R"({"type":"byte","vocab_size":257,"eod_id":256})";
  const std::string bytes = put("bytes", byte), same = put("same", " " + byte), none = put("none", "");
  const std::string other =
      put("other", R"({"type":"huggingface","vocab_size":704,"eod_id":700,"files":["t.json"],"fingerprint":"00"})");
  EXPECT_EQ(Dataset::open({{same}, {none}}, kT, 0).first_of_other_tokenizer(bytes), "");
  EXPECT_EQ(Dataset::open({{same}, {other}}, kT, 0).first_of_other_tokenizer(bytes), other);
  EXPECT_EQ(Dataset::open({{bytes}, {other}}, kT, 0).first_of_other_tokenizer(none), "");
}

TEST_F(DatasetTest, SharedShardsAreFoundUnderAnyName) {
  const Dataset data = open_a();
  EXPECT_EQ(data.first_shared_shard(Dataset::open({{dir / "b.bin", 1, "uint16"}}, kT, 0)), "");
  write_bytes(dir / "copy.bin", read_bytes(dir / "a_000002.bin"));
  EXPECT_EQ(data.first_shared_shard(Dataset::open({{dir / "copy.bin"}}, kT, 0)), dir / "copy.bin");
  EXPECT_EQ(data.first_shared_shard(data), dir / "a_000000.bin");
}

TEST_F(DatasetTest, MaskWithoutTrainedTokensIsRefused) {
  const std::vector<ShardSource> source = {{dir / "a_00000?.bin"}};
  const auto write_masks = [&](const char* last) {
    for (const char* name : {"a_000000.bin", "a_000001.bin", "a_000002.bin"})
      write_bytes(dir / (std::string(name) + ".loss"), std::string(name[7] == '0'   ? 100
                                                                   : name[7] == '1' ? 8
                                                                                    : 50,
                                                                   '\0'));
    write_bytes(dir / "a_000002.bin.loss", std::string(49, '\0') + last[0]);
  };
  write_masks("\0");
  EXPECT_ERROR(Dataset::open(source, kT, 0), "a_00000?.bin", "loss mask leaves out every token");
  write_masks("\1");
  EXPECT_EQ(Dataset::open(source, kT, 0).windows(), 18);
}

TEST_F(DatasetTest, FileOrderWindowsOverlapByOneToken) {
  const Dataset data = open_a();
  const SampleOrder in_order{.seed = 1, .shuffled = false};
  for (int64_t n = 0; n < 18; ++n) {
    const auto tokens = window(data, in_order, n);
    const int64_t first = n < 12 ? n * kT : 2000 + (n - 12) * kT;
    for (int64_t i = 0; i <= kT; ++i) EXPECT_EQ(tokens[size_t(i)], first + i) << n;
  }
  EXPECT_EQ(window(data, in_order, 18), window(data, in_order, 0));  // second epoch
}

TEST_F(DatasetTest, EveryEpochVisitsEveryWindowOnceInItsOwnOrder) {
  const Dataset data = open_a();
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    std::vector<int64_t> seen;
    for (int64_t n = epoch * 18; n < (epoch + 1) * 18; ++n) {
      const Sample s = data.locate({.seed = 3}, n);
      EXPECT_EQ(s.epoch, epoch);
      seen.push_back(s.window);
      EXPECT_EQ(window(data, {.seed = 3}, n).front(), (s.shard == 0 ? 0 : 2000) + s.token);
    }
    orders.insert(seen);
    std::sort(seen.begin(), seen.end());
    for (int64_t w = 0; w < 18; ++w) EXPECT_EQ(seen[size_t(w)], w);
  }
  EXPECT_EQ(orders.size(), 5u);
}

TEST_F(DatasetTest, SourcesKeepTheirWeightsAndEpochs) {
  const Dataset data = open_ab(2);  // a: 18 windows, a third of the samples; b: 1 window
  std::map<int64_t, int64_t> samples;
  int64_t last_epoch_of_b = -1;
  for (int64_t n = 0; n < 54; ++n) {
    const Sample s = data.locate({.seed = 3}, n);
    ++samples[s.source];
    EXPECT_EQ(s.epoch, s.source == 0 ? 0 : ++last_epoch_of_b);
  }
  EXPECT_EQ(samples[0], 18);
  EXPECT_EQ(samples[1], 36);
}

TEST_F(DatasetTest, SourcesWithTheSameFilesAreShuffledIndependently) {
  const Dataset data = Dataset::open({{dir / "a_*.bin"}, {dir / "a_*.bin"}}, kT, 0);
  std::vector<int64_t> first, second;
  for (int64_t n = 0; n < 36; ++n) {
    const Sample s = data.locate({.seed = 3}, n);
    (s.source ? second : first).push_back(s.window);
  }
  EXPECT_NE(first, second);
}

TEST_F(DatasetTest, OnlySeedsChangeTheOrder) {
  const Dataset data = open_a(), again = open_a();
  std::vector<int64_t> a, b, c;
  for (int64_t n = 0; n < 18; ++n) {
    a.push_back(data.locate({.seed = 3}, n).window);
    b.push_back(again.locate({.seed = 3}, n).window);
    c.push_back(data.locate({.seed = 4}, n).window);
  }
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
}

TEST_F(DatasetTest, SamplesFarBeyondTheFirstEpochAreReadable) {
  const Dataset data = open_ab();
  for (int64_t n : {int64_t{1'000'000'000}, int64_t{1'000'000'001}}) EXPECT_EQ(window(data, {.seed = 1}, n).size(), 9u);
}

TEST_F(DatasetTest, WrongWindowSizesAreErrors) {
  const Dataset data = open_a();
  std::vector<int32_t> tokens(kT + 1), targets(kT + 1);
  EXPECT_THROW(data.read_row(data.locate({}, 0), data.whole_rows(), {.tokens = tokens, .targets = targets}), Error);
  EXPECT_THROW(data.locate({}, -1), Error);
}

// ---- Errors at open

TEST_F(DatasetTest, PatternWithoutMatchIsNamed) {
  for (const char* pattern : {"none_*.bin", "no/such/folder/*.bin", "none.bin"})
    EXPECT_ERROR(Dataset::open({{dir / pattern}}, kT, 0), dir / pattern, "no file matches");
  EXPECT_THROW(Dataset::open({}, kT, 0), Error);
}

TEST_F(DatasetTest, TooLittleDataIsAnError) {
  EXPECT_ERROR(Dataset::open({{dir / "a_000001.bin"}}, kT, 0), "a_000001.bin", "at least 9", "found 8 tokens");
  EXPECT_ERROR(Dataset::open({{dir / "a_*.bin"}}, 100, 0), "at least 101", "found 158", "3 shard");
  for (int64_t bad : {int64_t{0}, int64_t{-1}, INT64_MAX, INT64_MIN})
    EXPECT_ERROR(Dataset::open({{dir / "a_*.bin"}}, bad, 0), "seq_length of 1 to", cat(bad));
}

TEST_F(DatasetTest, OneBadShardAmongManyIsAnErrorAtOpen) {
  write_bytes(dir / "a_000003.bin", llmc(counting(50)).substr(0, 1100));
  EXPECT_ERROR(open_a(), "a_000003.bin", "promises 50");
}

TEST_F(DatasetTest, TokensOutsideTheVocabularyAreFoundAtBothEnds) {
  EXPECT_NO_THROW(open_a(2050));
  EXPECT_ERROR(open_a(2049), "a_000002.bin", "token 49 is 2049");
  EXPECT_ERROR(open_a(2000), "a_000002.bin", "token 0 is 2000");
}

// Beyond the 64 KiB that are read from the start.
TEST_F(DatasetTest, EndOfALargeShardIsChecked) {
  auto tokens = counting(200'000, 0, 1000);
  const auto open_large = [&] {
    write_bytes(dir / "large.bin", llmc(tokens));
    return Dataset::open({{dir / "large.bin"}}, kT, 1000).fingerprint();
  };
  const std::string before = open_large();
  tokens[100'000] = 999;  // only verify reads the middle
  EXPECT_EQ(open_large(), before);
  tokens.back() = 7;
  EXPECT_NE(open_large(), before);
  tokens.back() = 1000;
  expect_parts(error_of(open_large), {"large.bin", "token 199999 is 1000"});
}

TEST_F(DatasetTest, OpenDetectsAHeaderlessFileOfTheWrongType) {
  write_bytes(dir / "wrong.bin", raw(counting(1000, 1)));
  EXPECT_ERROR(Dataset::open({{dir / "wrong.bin", 1, "uint32"}}, kT, 50257), "wrong.bin", "dtype");
}

TEST_F(DatasetTest, BadWeightsAreErrors) { EXPECT_ERROR(open_ab(0), "weight"); }

// Samples up to a checkpoint do not depend on stages that begin later: they may be added, moved and changed.
TEST_F(DatasetTest, FingerprintCoversOnlyStagesThatHaveBegun) {
  const auto open = [&](const std::vector<MixtureStage>& stages) {
    return Dataset::open({{dir / "a_*.bin", 3}, {dir / "b.bin", 1, "uint16"}}, kT, 0, stages);
  };
  const Dataset plain = open({}), staged = open({{10, {1, 1}}, {20, {0, 1}}});
  EXPECT_EQ(plain.fingerprint(), open_ab(1.0 / 3).fingerprint()) << "stages that there are not count";
  EXPECT_EQ(staged.fingerprint(10), plain.fingerprint());
  EXPECT_NE(staged.fingerprint(11), plain.fingerprint());
  EXPECT_EQ(staged.fingerprint(20), open({{10, {1, 1}}}).fingerprint());
  EXPECT_NE(staged.fingerprint(21), staged.fingerprint(20));
  EXPECT_NE(open({{11, {1, 1}}}).fingerprint(12), staged.fingerprint(12));
  EXPECT_NE(open({{10, {1, 2}}}).fingerprint(12), staged.fingerprint(12));
  for (int64_t n = 0; n < 40; ++n) {
    const SampleOrder order{.seed = 5};
    EXPECT_TRUE(n >= 10 || window(staged, order, n) == window(plain, order, n)) << n;
    EXPECT_TRUE(n < 20 || staged.locate(order, n).source == 1) << n;
  }
  EXPECT_ERROR(Dataset::open({{dir / "a_*.bin"}, {dir / "b.bin", 0, "uint16"}}, kT, 0, {{5, {1, 0}}}), "b.bin",
               "weight is 0");
}

TEST_F(DatasetTest, NamesWithGlobCharactersMatchLiterally) {
  write_bytes(dir / "odd[1]*.bin", llmc(counting(100)));
  EXPECT_EQ(Dataset::open({{dir / "odd[1]*.bin"}}, kT, 0).windows(), 12);
}

// ---- Fingerprint and description

TEST_F(DatasetTest, FingerprintCoversContentAndSettings) {
  const std::string base = open_ab().fingerprint();
  EXPECT_EQ(base.size(), 32u);
  EXPECT_EQ(base, open_ab().fingerprint());
  std::set<std::string> all = {base};
  const auto differs = [&](const std::string& fingerprint, const char* why) {
    EXPECT_TRUE(all.insert(fingerprint).second) << why;
  };
  differs(open_ab(2).fingerprint(), "weight");
  differs(Dataset::open({{dir / "a_*.bin"}, {dir / "b.bin", 1, "uint16"}}, kT - 1, 0).fingerprint(), "seq_length");
  differs(open_a().fingerprint(), "sources");
  std::string bytes = read_bytes(dir / "a_000002.bin");
  bytes.back() ^= 1;
  write_bytes(dir / "a_000002.bin", bytes);
  differs(open_ab().fingerprint(), "last byte");
  write_bytes(dir / "a_000002.bin", llmc(counting(51, 2000)));
  differs(open_ab().fingerprint(), "size");
  std::filesystem::rename(dir / "a_000002.bin", dir / "a_000007.bin");
  differs(open_ab().fingerprint(), "name");
}

TEST_F(DatasetTest, FingerprintDoesNotDependOnTheFolder) {
  const std::string here = open_a().fingerprint();
  std::filesystem::create_directories(dir / "moved");
  for (const char* name : {"a_000000.bin", "a_000001.bin", "a_000002.bin"})
    std::filesystem::rename(dir / name, dir / (std::string("moved/") + name));
  EXPECT_EQ(Dataset::open({{dir / "moved/a_*.bin"}}, kT, 0).fingerprint(), here);
}

TEST_F(DatasetTest, DoubtsCountTokensOutsideAllWindows) {
  const auto doubts = open_a().doubts();
  ASSERT_EQ(doubts.size(), 1u);
  // 8 of the short shard, 100 - 1 - 12 * 8 and 50 - 1 - 6 * 8 at the ends of the others
  expect_parts(doubts[0], {"a_*.bin: 12 of 158 tokens are never read", "windows of 9 tokens", "1 of its 3 shard(s)"});
  EXPECT_TRUE(Dataset::open({{dir / "b.bin", 1, "uint16"}}, kT, 0).doubts().empty());
  write_bytes(dir / "c.bin", llmc(counting(1080)));
  EXPECT_TRUE(Dataset::open({{dir / "c.bin"}}, 99, 0).doubts().empty()) << "89 of 1080 are few";
  expect_parts(Dataset::open({{dir / "c.bin"}}, 600, 0).doubts()[0], {"c.bin: 479 of 1080"});
}

// Data of the other width pass every check of the vocabulary.
TEST_F(DatasetTest, DoubtsNameHeaderlessTokensOfTheWrongWidth) {
  const auto doubt = [&](const std::string& bytes, const char* dtype) {
    write_bytes(dir / "wide.bin", bytes);
    const auto doubts = Dataset::open({{dir / "wide.bin", 1, dtype}}, kT, 0).doubts();
    return doubts.empty() ? "" : doubts[0];
  };
  std::vector<uint32_t> small, large;
  for (uint32_t i = 0; i < 401; ++i) small.push_back(20 + i * 7 % 200), large.push_back(20 + i * 331 % 128000);
  expect_parts(doubt(raw(small), "uint16"),
               {"wide.bin: every second token is 0", "probably uint32 tokens, not uint16"});
  expect_parts(doubt(raw(large), "uint16"), {"every second token is at most 15", "uint32"});
  EXPECT_EQ(doubt(raw(small), "uint32"), "");
  EXPECT_EQ(doubt(raw(large), "uint32"), "");
  EXPECT_EQ(doubt(raw(counting(401)), "uint16"), "");
  EXPECT_EQ(doubt(raw(std::vector<uint16_t>(401, 0)), "uint16"), "") << "all tokens alike";
  expect_parts(doubt(raw(counting(401, 100, 256)), "uint8"), {"every second token is 0", "uint16 tokens, not uint8"});
}

TEST_F(DatasetTest, DescriptionListsSourcesShardsAndTokens) {
  expect_parts(open_ab(3).description(), {"a_*.bin", "3 shard(s)", "llm.c-v1", "158 tokens", "18 windows of 8", "1/4",
                                          "b.bin", "raw-uint16", "3/4"});
}

}  // namespace
}  // namespace athanor
