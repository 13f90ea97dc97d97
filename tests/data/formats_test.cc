// The formats of other programs, written here byte by byte as their documentation says: tokens, documents, masks, and
// what damage to a header or an index leads to.
#include <limits>
#include <random>

#include "data/dataset.h"
#include "data/glob.h"
#include "data/loader.h"
#include "data/token_file.h"
#include "data_testing.h"

namespace athanor {
namespace {

using namespace testing;

template <class T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::vector<int32_t> all_tokens(const TokenFile& file) {
  std::vector<int32_t> tokens(size_t(file.count()));
  file.read(0, tokens);
  return tokens;
}

std::vector<uint8_t> all_masks(const TokenFile& file) {
  std::vector<uint8_t> mask(size_t(file.count()));
  file.read_mask(0, mask);
  return mask;
}

std::vector<int64_t> all_ends(const TokenFile& file) {
  std::vector<int64_t> ends;
  for (int64_t i = 0; i < file.layout().documents->count(); ++i) ends.push_back(file.layout().documents->end(i));
  return ends;
}

struct FormatsTest : ::testing::Test {
  TempDir dir;
  std::string put(const std::string& name, const std::string& bytes) {
    write_bytes(dir / name, bytes);
    return dir / name;
  }
};

// ---- Megatron-LM

struct MegatronIndex {
  uint8_t code = 8;
  std::vector<int32_t> lengths;
  std::vector<int64_t> documents;  // begins with 0
  int64_t item = 2;
  std::string text() const {
    std::string pointers;
    int64_t at = 0;
    for (const int32_t n : lengths) {
      pointers += bytes_of(at);
      at += n * item;
    }
    return std::string("MMIDIDX\0\0", 9) + bytes_of<uint64_t>(1) + bytes_of(code) + bytes_of<uint64_t>(lengths.size()) +
           bytes_of<uint64_t>(documents.size()) + raw(lengths) + pointers + raw(documents);
  }
};

TEST_F(FormatsTest, ReadsMegatronOfEveryTypeCode) {
  const auto check = [&]<class T>(uint8_t code, const char* name) {
    const std::vector<T> tokens = {T(1), T(2), T(127), T(0), T(5), T(6)};
    const std::string path = put("set.bin", raw(tokens));
    put("set.idx", MegatronIndex{code, {2, 1, 3}, {0, 2, 3}, sizeof(T)}.text());
    const TokenFile file = TokenFile::open(path);
    EXPECT_EQ(file.layout().format, cat("megatron-", name));
    EXPECT_EQ(all_tokens(file), (std::vector<int32_t>{1, 2, 127, 0, 5, 6})) << name;
    EXPECT_EQ(all_ends(file), (std::vector<int64_t>{3, 6})) << name;
  };
  check.operator()<uint8_t>(1, "uint8");
  check.operator()<int8_t>(2, "int8");
  check.operator()<int16_t>(3, "int16");
  check.operator()<int32_t>(4, "int32");
  check.operator()<int64_t>(5, "int64");
  check.operator()<double>(6, "float64");
  check.operator()<float>(7, "float32");
  check.operator()<uint16_t>(8, "uint16");
}

TEST_F(FormatsTest, InvalidTokensAreReportedAsStored) {
  const auto message = [&]<class T>(uint8_t code, T bad) {
    const std::string path = put("set.bin", raw(std::vector<T>{T(1), bad}));
    put("set.idx", MegatronIndex{code, {2}, {0, 1}, sizeof(T)}.text());
    return error_of([&] { all_tokens(TokenFile::open(path)); });
  };
  expect_parts(message.operator()<int8_t>(2, -3), {"set.bin", "token 1 is -3"});
  expect_parts(message.operator()<int16_t>(3, -1), {"token 1 is -1"});
  expect_parts(message.operator()<int32_t>(4, -2), {"token 1 is -2"});
  expect_parts(message.operator()<int64_t>(5, int64_t{1} << 40), {"token 1 is 1099511627776"});
  expect_parts(message.operator()<int64_t>(5, -5), {"token 1 is -5"});
  expect_parts(message.operator()<double>(6, 0.5), {"token 1 is 0.5"});
  expect_parts(message.operator()<float>(7, std::numeric_limits<float>::quiet_NaN()), {"token 1 is", "nan"});
}

TEST_F(FormatsTest, MegatronDamageIsNamed) {
  const MegatronIndex good{8, {2, 1, 3}, {0, 2, 3}};
  const std::string tokens = raw(std::vector<uint16_t>{1, 2, 3, 4, 5, 6});
  const auto refusal = [&](const std::string& index,
                           const std::string& bin = raw(std::vector<uint16_t>{1, 2, 3, 4, 5, 6})) {
    const std::string path = put("set.bin", bin);
    put("set.idx", index);
    return error_of([&] { TokenFile::open(path); });
  };
  const std::string text = good.text();
  for (size_t size = 0; size < text.size(); ++size) expect_parts(refusal(text.substr(0, size)), {"set.idx"});
  expect_parts(refusal(text + "x"), {"set.idx", "truncated or damaged"});
  const auto changed = [&](size_t at, const std::string& bytes) {
    return std::string(text).replace(at, bytes.size(), bytes);
  };
  expect_parts(refusal(changed(0, "N")), {"MMIDIDX"});
  expect_parts(refusal(changed(9, bytes_of<uint64_t>(2))), {"version 1", "2"});
  for (const uint8_t code : {uint8_t{0}, uint8_t{9}, uint8_t{255}})
    expect_parts(refusal(changed(17, bytes_of(code))), {"byte 17", cat(int(code))});
  for (const uint64_t hostile : {uint64_t{4}, uint64_t{1} << 60, uint64_t{1} << 63, ~uint64_t{0}}) {
    expect_parts(refusal(changed(18, bytes_of(hostile))), {"set.idx", "promises"});
    expect_parts(refusal(changed(26, bytes_of(hostile))), {"set.idx", "promises"});
  }
  expect_parts(refusal(changed(34, bytes_of<int32_t>(-2))), {"sequence 0", "-2"});
  expect_parts(refusal(changed(46 + 8, bytes_of<int64_t>(6))), {"sequence 1", "byte 6", "expected it at byte 4"});
  expect_parts(refusal(changed(70, bytes_of<int64_t>(1))), {"boundary 0", "1"});
  expect_parts(refusal(changed(78, bytes_of<int64_t>(4))), {"boundary 1", "4"});
  expect_parts(refusal(changed(78, bytes_of<int64_t>(-1))), {"boundary 1", "-1"});
  expect_parts(refusal(changed(86, bytes_of<int64_t>(2))), {"end at sequence 2 of 3"});
  expect_parts(refusal(text, tokens.substr(2)), {"set.bin", "10 bytes", "12"});
  expect_parts(refusal(text, tokens + "xx"), {"set.bin", "14 bytes", "12"});
  EXPECT_ERROR(TokenFile::open(put("set.bin", tokens), "uint32"), "uint32", "set.bin");
  EXPECT_ERROR(TokenFile::open(put("set.idx", text)), "set.idx", "give the .bin");
}

TEST_F(FormatsTest, MegatronSequenceModesAreAccepted) {
  put("set.idx", MegatronIndex{8, {2, 1}, {0, 2}}.text() + std::string(2, '\1'));
  EXPECT_EQ(TokenFile::open(put("set.bin", raw(std::vector<uint16_t>{1, 2, 3}))).count(), 3);
}

// Megatron-LM's --data-path has neither extension.
TEST_F(FormatsTest, MegatronPrefixFindsItsBinFile) {
  put("set_document.idx", MegatronIndex{8, {2, 1}, {0, 2}}.text());
  const std::string bin = put("set_document.bin", raw(std::vector<uint16_t>{1, 2, 3}));
  const std::string prefix = bin.substr(0, bin.size() - 4);
  EXPECT_EQ(expand_glob(prefix), std::vector<std::string>{bin});
  std::filesystem::remove(prefix + ".idx");
  EXPECT_ERROR(expand_glob(prefix), "no file matches", prefix);
}

TEST_F(FormatsTest, MegatronBinWithoutIndexIsRefused) {
  EXPECT_ERROR(TokenFile::open(put("set.bin", raw(counting(10)))), "set.bin", ".idx belongs next to");
}

// ---- datatrove, nanotron

TEST_F(FormatsTest, NanotronTypesFollowTheMetadata) {
  put("a.ds.metadata", "meta-llama/Llama|4\n2\n2 T");
  EXPECT_EQ(all_tokens(TokenFile::open(put("a.ds", raw(std::vector<uint32_t>{128000, 7})))),
            (std::vector<int32_t>{128000, 7}));
  EXPECT_ERROR(TokenFile::open(dir / "a.ds", "uint16"), "uint16", "uint32", "a.ds");
  EXPECT_ERROR(TokenFile::open(put("b.ds", "abcd")), "b.ds.metadata", "dtype");
  EXPECT_EQ(TokenFile::open(dir / "b.ds", "uint16").count(), 2);
  put("b.ds.metadata", "gpt2|3\n");
  EXPECT_ERROR(TokenFile::open(dir / "b.ds"), "b.ds.metadata", "gpt2|3");
}

TEST_F(FormatsTest, NanotronIndexMustEndWithTheFile) {
  const std::string path = put("a.ds", raw(counting(10)));
  const auto refusal = [&](const std::vector<uint64_t>& ends, const std::string& more = "") {
    put("a.ds.index", raw(ends) + more);
    return error_of([&] { TokenFile::open(path, "uint16"); });
  };
  expect_parts(refusal({}), {"a.ds.index", "0 documents"});
  expect_parts(refusal({4, 9}), {"a.ds.index", "end at token 9", "10"});
  expect_parts(refusal({4, 11}), {"document 1", "11"});
  expect_parts(refusal({6, 4, 10}), {"document 1", "4", "6"});
  expect_parts(refusal({~uint64_t{0}, 10}), {"document 0", "18446744073709551615"});
  expect_parts(refusal({10}, "xyz"), {"a.ds.index", "11 bytes"});
}

// A window's documents are those that a plain scan over all ends finds.
TEST_F(FormatsTest, DocumentEndsInAWindowMatchAScan) {
  std::mt19937 random(5);
  std::vector<uint64_t> ends;
  for (uint64_t at = 0; at < 500; at += random() % 4 ? random() % 20 : 0) ends.push_back(at);
  ends.push_back(500);
  put("a.ds.index", raw(ends));
  const TokenFile file = TokenFile::open(put("a.ds", raw(counting(500))), "uint16");
  for (int64_t at = 0; at < 500; at += 3)
    for (const int64_t n : {1, 7, 64, 500}) {
      std::vector<int64_t> want;
      for (const uint64_t e : ends)
        if (int64_t(e) > at && int64_t(e) <= at + n && (want.empty() || want.back() != int64_t(e)))
          want.push_back(int64_t(e));
      ASSERT_EQ(file.layout().documents->ends_within(at, n), want) << at << " " << n;
    }
}

// ---- masks

TEST_F(FormatsTest, ReadsDocumentsAndMasksOfFixtures) {
  const std::vector<int64_t> ends = {100, 100, 350, 600};
  EXPECT_EQ(all_ends(TokenFile::open("data/fixtures/megatron.bin")), ends);
  EXPECT_EQ(all_ends(TokenFile::open("data/fixtures/nanotron.ds")), ends);
  const DocumentStatistics s = TokenFile::open("data/fixtures/megatron.bin").layout().documents->statistics();
  EXPECT_EQ(s.count, 4);
  EXPECT_EQ(s.tokens, 600);
  EXPECT_EQ(s.shortest, 0);
  EXPECT_EQ(s.longest, 250);
  for (const char* name : {"data/fixtures/llmq_v2.bin", "data/fixtures/nanotron.ds"}) {
    const auto mask = all_masks(TokenFile::open(name));
    for (size_t i = 0; i < mask.size(); ++i) ASSERT_EQ(mask[i], i % 3 != 0) << name << " " << i;
  }
  for (const uint8_t m : all_masks(TokenFile::open("data/fixtures/llmc_v1.bin"))) ASSERT_EQ(m, 1);
}

TEST_F(FormatsTest, MasksAreReadableFromAnyToken) {
  const TokenFile file = TokenFile::open("data/fixtures/llmq_v2.bin");
  for (int64_t at = 0; at < 30; ++at)
    for (size_t n = 0; n < 20; ++n) {
      std::vector<uint8_t> mask(n);
      file.read_mask(at, mask);
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(mask[i], (at + int64_t(i)) % 3 != 0);
    }
  std::vector<uint8_t> beyond(2);
  EXPECT_ERROR(file.read_mask(599, beyond), "has 600");
}

TEST_F(FormatsTest, MaskFileHasOneByteAToken) {
  const std::string path = put("a.bin", llmc(counting(4)));
  put("a.bin.loss", std::string("\0\1\2\0", 4));
  EXPECT_EQ(all_masks(TokenFile::open(path)), (std::vector<uint8_t>{0, 1, 1, 0}));
  put("a.bin.loss", "abc");
  EXPECT_ERROR(TokenFile::open(path), "a.bin.loss", "4 tokens", "3");
}

// ---- LLMQ

std::string llmq(int32_t version, int32_t item, int32_t count, int32_t masks) {
  std::string head = "BIN.TOK\n" + raw(std::vector<int32_t>{version, item, count});
  if (version == 2) head += raw(std::vector<int32_t>{100, masks});
  return head + std::string(1023 - head.size(), '*') + "\n";
}

TEST_F(FormatsTest, ReadsBothLlmqVersions) {
  const std::string tokens = raw(std::vector<int32_t>{3, 99, 0});
  EXPECT_EQ(all_tokens(TokenFile::open(put("a.bin", llmq(1, 4, 3, 0) + tokens))), (std::vector<int32_t>{3, 99, 0}));
  const TokenFile file = TokenFile::open(put("b.bin", llmq(2, 4, 3, 1) + tokens + "\5"));
  EXPECT_EQ(all_tokens(file), (std::vector<int32_t>{3, 99, 0}));
  EXPECT_EQ(all_masks(file), (std::vector<uint8_t>{1, 0, 1}));
}

TEST_F(FormatsTest, LlmqDamageIsNamed) {
  const std::string tokens = raw(std::vector<int32_t>{3, 99, 0});
  const auto refusal = [&](const std::string& bytes) {
    const std::string path = put("a.bin", bytes);
    const std::string message = error_of([&] { TokenFile::open(path); });
    expect_parts(message, {"a.bin"});
    return message;
  };
  expect_parts(refusal(llmq(3, 4, 3, 0) + tokens), {"version 1 or 2", "3"});
  expect_parts(refusal(llmq(2, 2, 3, 0) + tokens), {"2 bytes per token"});
  expect_parts(refusal(llmq(2, 4, -3, 0) + tokens), {"-3 tokens"});
  expect_parts(refusal(llmq(2, 4, 3, 7) + tokens), {"has_masks 7"});
  expect_parts(refusal(llmq(2, 4, INT32_MAX, 1) + tokens), {"promises 2147483647"});
  expect_parts(refusal(llmq(2, 4, 3, 1) + tokens), {"with a mask", "1037 bytes", "1036"});
  expect_parts(refusal(llmq(2, 4, 3, 0) + tokens + "x"), {"1036 bytes", "1037"});
  expect_parts(refusal(llmq(2, 4, 3, 0).substr(0, 1000)), {"truncated"});
}

// ---- NumPy

std::string numpy(const std::string& dict, const std::string& values, char version = 1) {
  const std::string length = version == 1 ? bytes_of(uint16_t(dict.size())) : bytes_of(uint32_t(dict.size()));
  return std::string("\x93NUMPY") + version + '\0' + length + dict + values;
}

TEST_F(FormatsTest, ReadsNumpyArraysOfEveryIntegerType) {
  const auto check = [&]<class T>(const char* descr) {
    const std::string dict = cat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (2, 2), }\n");
    for (const char version : {1, 2, 3})
      EXPECT_EQ(all_tokens(TokenFile::open(put("a.npy", numpy(dict, raw(std::vector<T>{1, 2, 3, 4}), version)))),
                (std::vector<int32_t>{1, 2, 3, 4}))
          << descr;
  };
  check.operator()<uint8_t>("|u1");
  check.operator()<int8_t>("|i1");
  check.operator()<uint16_t>("<u2");
  check.operator()<int16_t>("<i2");
  check.operator()<uint32_t>("<u4");
  check.operator()<int32_t>("<i4");
  check.operator()<uint64_t>("<u8");
  check.operator()<int64_t>("<i8");
}

TEST_F(FormatsTest, UnsupportedNumpyArraysAreNamed) {
  const std::string values = raw(std::vector<uint16_t>{1, 2, 3, 4});
  const auto refusal = [&](const std::string& bytes) {
    const std::string path = put("a.npy", bytes);
    const std::string message = error_of([&] { TokenFile::open(path); });
    expect_parts(message, {"a.npy"});
    return message;
  };
  const auto dict = [](const char* descr, const char* order, const char* shape) {
    return cat("{'descr': ", descr, ", 'fortran_order': ", order, ", 'shape': ", shape, ", }\n");
  };
  expect_parts(refusal(numpy(dict("'<f4'", "False", "(2,)"), values)), {"<f4"});
  expect_parts(refusal(numpy(dict("'>u2'", "False", "(4,)"), values)), {">u2"});
  expect_parts(refusal(numpy(dict("'<u2'", "True", "(2, 2)"), values)), {"Fortran"});
  expect_parts(refusal(numpy(dict("'<u2'", "False", "(5,)"), values)), {"promises 5", "8 bytes"});
  expect_parts(refusal(numpy(dict("'<u2'", "False", "(4294967296, 4294967296)"), values)), {"damaged"});
  expect_parts(refusal(numpy(dict("'<u2'", "False", "(-4,)"), values)), {"damaged"});
  expect_parts(refusal(numpy(dict("'<u2'", "False", "(4"), "")), {"a.npy"});
  expect_parts(refusal(numpy(dict("[('a', '<u2')]", "False", "(4,)"), values)), {"damaged"});
  expect_parts(refusal(numpy("", "")), {"damaged"});
  expect_parts(refusal(std::string("\x93NUMPY\1\0\xff\xff", 10)), {"65535"});
  for (size_t size = 6; size < 10; ++size)
    expect_parts(refusal(std::string("\x93NUMPY\1\0\0\0", 10).substr(0, size)), {"a.npy"});
}

// ---- all of them, as sources of a run

// A stopped run continues with exactly the remaining windows, over epochs and files, in every format.
TEST_F(FormatsTest, LoadersResumeAnywhereInEveryFormat) {
  const std::pair<const char*, const char*> sources[] = {{"llmq_v2.bin", "auto"},
                                                         {"megatron.bin", "auto"},
                                                         {"nanotron.ds", "auto"},
                                                         {"olmo.npy", "uint16"},
                                                         {"array.npy", "auto"}};
  for (const auto& [name, dtype] : sources) {
    const Dataset data = Dataset::open({{cat("data/fixtures/", name), 1, dtype}}, 16, 257);
    ASSERT_EQ(data.windows(), 37) << name;
    Loader whole(data, {.order = {.seed = 3}, .rows = 2});
    std::vector<std::vector<int32_t>> seen;
    for (int i = 0; i < 60; ++i) seen.push_back(whole.next().tokens);  // three epochs
    for (const int64_t stopped : {1, 18, 37, 59}) {
      Loader rest(data, {.order = {.seed = 3}, .first_sample = stopped * 2, .rows = 2});
      for (int64_t i = stopped; i < 60; ++i) ASSERT_EQ(rest.next().tokens, seen[size_t(i)]) << name << " " << stopped;
    }
  }
}

TEST_F(FormatsTest, FingerprintCoversIndicesAndMasks) {
  const std::string path = put("a.ds", raw(counting(40)));
  const auto fingerprint = [&] { return Dataset::open({{path, 1, "uint16"}}, 8, 0).fingerprint(); };
  const std::string bare = fingerprint();
  put("a.ds.index", raw(std::vector<uint64_t>{10, 40}));
  const std::string with_index = fingerprint();
  put("a.ds.index", raw(std::vector<uint64_t>{11, 40}));
  const std::string other_index = fingerprint();
  put("a.ds.loss", std::string(40, '\1'));
  const std::string with_mask = fingerprint();
  EXPECT_NE(bare, with_index);
  EXPECT_NE(with_index, other_index);
  EXPECT_NE(other_index, with_mask);
}

TEST_F(FormatsTest, SideFilesThatChangeWhileOpenAreErrors) {
  const std::string path = put("a.ds", raw(counting(40)));
  put("a.ds.index", raw(std::vector<uint64_t>{10, 40}));
  put("a.ds.loss", std::string(40, '\1'));
  const TokenFile file = TokenFile::open(path, "uint16");
  std::vector<uint8_t> mask(10);
  std::filesystem::resize_file(dir / "a.ds.loss", 39);
  EXPECT_ERROR(file.read_mask(0, mask), "a.ds.loss", "40 bytes at open", "39 now");
  std::filesystem::resize_file(dir / "a.ds.index", 24);
  EXPECT_ERROR(file.layout().documents->ends_within(0, 8), "a.ds.index", "16 bytes at open", "24 now");
}

}  // namespace
}  // namespace athanor
