// Documents of `athanor tokenize`: JSON lines, separators, compression, the split by hash; identical bytes for any
// number of threads and after any kill; and the files that bad input leaves.
#include <sys/wait.h>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/rng.h"
#include "data/document_stream.h"
#include "data/glob.h"
#include "data/json_line.h"
#include "data/shard_writer.h"
#include "data/text_encoding.h"
#include "data/token_file.h"
#include "data/tokenize.h"
#include "data_testing.h"
#include "parquet_writer.h"

namespace athanor {
namespace {

using namespace testing;

std::string words(uint64_t seed, size_t size) {
  std::string text;
  for (uint64_t i = 0; text.size() < size; ++i) {
    const uint32_t r = random_bits(seed, 4, i);
    const char* const some[] = {"the", "of", "a", "träumt", "123", "it's", "世界", "x", "\n", "Hello,"};
    text += some[r % 10] + std::string((r >> 8) % 7 ? " " : "\n\n");
  }
  return text;
}

struct DocumentsTest : ::testing::Test {
  TempDir dir;
  TokenizeOptions options;
  int inputs = 0;
  DocumentsTest() {
    options.output_prefix = dir / "out/d";
    options.tokenizer.source = "tests/tokenizer/fixtures/gpt2";
    options.documents.valid_every = 4;
    options.threads = 2;
  }
  std::string input(const std::string& name, const std::string& content) {
    const std::string path = dir / cat(inputs++, name);
    write_bytes(path, content);
    options.documents.inputs.push_back(path);
    return path;
  }
  // Decoded documents of the training shards and of the validation shards.
  std::vector<std::vector<std::string>> documents(const TokenizeResult& result) const {
    const auto tokenizer = make_tokenizer(options.tokenizer);
    std::vector<std::vector<std::string>> parts;
    for (const auto& shards : {result.train_shards, result.valid_shards}) {
      auto& part = parts.emplace_back();
      std::vector<int32_t> ids;
      for (const int32_t id : tokens_of(shards)) {
        if (id != tokenizer->eod_id()) {
          ids.push_back(id);
          continue;
        }
        part.push_back(tokenizer->decode(ids));
        ids.clear();
      }
      EXPECT_TRUE(ids.empty());
    }
    return parts;
  }
  std::map<std::string, std::string> output() const {
    std::map<std::string, std::string> files;
    for (const std::string& path : match_glob(dir / "out/*")) files[path] = read_bytes(path);
    return files;
  }
};

std::string lines_of(const std::vector<std::string>& texts) {
  std::string lines;
  for (const std::string& text : texts)
    lines += nlohmann::json{{"id", 3}, {"text", text}, {"meta", {{"text", "no"}}}}.dump() + "\n";
  return lines;
}

std::vector<std::string> some_texts(size_t count) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < count; ++i) texts.push_back(words(i, 20 + i * 37 % 3000));
  return texts;
}

TEST_F(DocumentsTest, EveryDocumentIsInItsSplitOnce) {
  const auto texts = some_texts(900);  // more than one job
  input(".jsonl", lines_of(texts));
  const TokenizeResult result = tokenize(options);
  std::vector<std::vector<std::string>> expected(2);
  for (const std::string& text : texts) expected[is_held_out(text, 4) ? 1 : 0].push_back(text);
  EXPECT_EQ(documents(result), expected);
  EXPECT_EQ(result.documents, 900);
  EXPECT_NEAR(double(expected[1].size()), 225, 60);
  EXPECT_TRUE(std::filesystem::exists(dir / "out/merges.txt"));
}

TEST_F(DocumentsTest, SeparatorsSplitTextAsJsonLinesDo) {
  const auto texts = some_texts(700);
  std::string text;
  for (const std::string& t : texts) text += t + "\n%%\n";
  input(".txt", text + "\n%%\n");  // an empty document is none
  options.documents.separator = "\n%%\n";
  const auto by_separator = documents(tokenize(options));
  options.documents.inputs.clear();
  options.output_prefix = dir / "lines/d";
  input(".jsonl", lines_of(texts));
  EXPECT_EQ(by_separator, documents(tokenize(options)));
}

TEST_F(DocumentsTest, BlocksAreCutAtWordsWithoutLoss) {
  const std::string text = words(1, 3'000'000);
  input(".txt", text);
  options.documents.block = 1000;
  const auto parts = documents(tokenize(options));
  ASSERT_EQ(parts[0].size(), 1u);
  ASSERT_EQ(parts[1].size(), 1u);
  EXPECT_EQ(parts[0][0].size() + parts[1][0].size(), text.size());
  EXPECT_NEAR(double(parts[1][0].size()), double(text.size()) / 4, 5000);
  options.documents.block = 0;  // unlimited: each text is tokenized at once
  options.documents.valid_every = 0;
  options.output_prefix = dir / "whole/d";
  auto ids = tokens_of(tokenize(options).train_shards);
  ids.pop_back();
  EXPECT_EQ(ids, make_tokenizer(options.tokenizer)->encode(text));
}

TEST_F(DocumentsTest, ThreadsDoNotChangeTheOutput) {
  input(".jsonl", lines_of(some_texts(2500)));
  input(".txt", words(3, 2'500'000));
  options.shard_tokens = 300'000;
  std::optional<std::map<std::string, std::string>> first;
  for (const int64_t threads : {1, 2, 7}) {
    options.threads = threads;
    options.overwrite = true;
    tokenize(options);
    if (!first) first = output();
    EXPECT_EQ(output(), *first) << threads;
  }
  EXPECT_GT(first->size(), 6u);
}

// After a kill at any point, the same command resumes and produces the same bytes.
struct KilledRun : DocumentsTest, ::testing::WithParamInterface<const char*> {};

TEST_P(KilledRun, ResumesWithTheSameOutput) {
#ifdef ATHANOR_SANITIZED
  GTEST_SKIP() << "forks, which sanitizers with threads do not like";
#endif
  input(".parquet", parquet_of(some_texts(900), 100));
  input(".jsonl", lines_of(some_texts(1600)));
  input(".txt", words(3, 2'500'000));
  options.shard_tokens = 300'000;
  options.save_seconds = 0;
  options.output_format = GetParam();
  tokenize(options);
  const auto expected = output();
  for (const int jobs : {1, 2, 4, 5, 6, 7}) {
    std::filesystem::remove_all(dir / "out");
    const pid_t child = ::fork();
    if (child == 0) {
      int left = jobs;
      options.progress = [&](const TokenizeProgress&) {
        if (--left == 0) ::raise(SIGKILL);
      };
      tokenize(options);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the run has fewer jobs than " << jobs;
    for (const auto& [path, content] : output())
      EXPECT_TRUE(path.ends_with(".tmp") || path.ends_with("progress.json") || path.ends_with(".lock")) << path;
    int64_t begin = -1;
    options.progress = [&](const TokenizeProgress& p) {
      if (begin < 0) begin = p.text_bytes - p.seconds_text_bytes;
    };
    tokenize(options);
    options.progress = {};
    EXPECT_GT(begin, 0) << "it started anew";
    EXPECT_EQ(output(), expected) << jobs;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, KilledRun, ::testing::Values("llm.c", "megatron"), [](const auto& test) {
  return std::string(test.param == std::string("megatron") ? "Megatron" : "Llmc");
});

// A Megatron data set is what an llm.c one is, cut at documents only, with an index that names each of them.
TEST_F(DocumentsTest, MegatronShardsHoldCompleteDocuments) {
  input(".jsonl", lines_of(some_texts(300)));
  options.shard_tokens = 5000;
  const TokenizeResult plain = tokenize(options);
  options.output_prefix = dir / "out/m";
  options.output_format = "megatron";
  const TokenizeResult megatron = tokenize(options);
  EXPECT_EQ(tokens_of(megatron.train_shards), tokens_of(plain.train_shards));
  EXPECT_EQ(tokens_of(megatron.valid_shards), tokens_of(plain.valid_shards));
  EXPECT_GT(megatron.train_shards.size(), 2u);
  const int32_t eod = make_tokenizer(options.tokenizer)->eod_id();
  int64_t documents = 0;
  for (const auto* shards : {&megatron.train_shards, &megatron.valid_shards})
    for (const std::string& path : *shards) {
      const TokenFile file = TokenFile::open(path);
      EXPECT_EQ(file.layout().format, "megatron-uint16");
      const auto tokens = tokens_of({path});
      std::vector<int64_t> ends, named;
      for (size_t i = 0; i < tokens.size(); ++i)
        if (tokens[i] == eod) ends.push_back(int64_t(i) + 1);
      for (int64_t i = 0; i < file.layout().documents->count(); ++i) named.push_back(file.layout().documents->end(i));
      EXPECT_EQ(named, ends) << path;
      EXPECT_EQ(tokens.back(), eod);
      if (path != shards->back()) {
        EXPECT_GE(int64_t(tokens.size()), options.shard_tokens) << path;
      }
      documents += int64_t(ends.size());
    }
  EXPECT_EQ(documents, megatron.documents);
  options.output_format = "parquet";
  EXPECT_ERROR(tokenize(options), "output format", "megatron", "parquet");
}

TEST_F(DocumentsTest, TwoRunsOfOnePrefixAreRefused) {
  input(".txt", words(1, 50'000));
  std::string message;
  options.progress = [&](const TokenizeProgress&) {
    TokenizeOptions second = options;
    second.progress = {};
    second.overwrite = true;
    if (message.empty()) message = error_of([&] { tokenize(second); });
    second.output_prefix = dir / "out/other";
    tokenize(second);
  };
  tokenize(options);
  expect_parts(message, {"out/d.lock", "another", "prefix"});
  for (const auto& [path, content] : output()) EXPECT_FALSE(path.ends_with(".lock")) << path;
  write_bytes(dir / "out/d.lock", "");  // as left by a killed run
  options.progress = {};
  options.overwrite = true;
  tokenize(options);
}

TEST_F(DocumentsTest, LeftoversOfAnotherRunAreNotResumed) {
  input(".txt", words(1, 50'000));
  std::filesystem::create_directories(dir / "out");
  write_bytes(dir / "out/d_progress.json", "{\"identity\": \"other\"}");
  EXPECT_ERROR(tokenize(options), "d_progress.json", "other inputs", "--overwrite");
  write_bytes(dir / "out/d_progress.json", "nonsense");
  EXPECT_ERROR(tokenize(options), "d_progress.json", "damaged");
  write_bytes(dir / "out/d_train_000000.bin.tmp", "left");
  options.overwrite = true;
  tokenize(options);
  for (const auto& [path, content] : output())
    EXPECT_FALSE(path.ends_with(".tmp") || path.ends_with("progress.json")) << path;
}

TEST_F(DocumentsTest, OneFolderHasOneTokenizer) {
  input(".txt", words(1, 50'000));
  tokenize(options);
  options.output_prefix = dir / "out/e";
  tokenize(options);
  options.tokenizer.source = "byte";
  options.output_prefix = dir / "out/f";
  EXPECT_ERROR(tokenize(options), "tokenizer.athanor.json", "another tokenizer");
  // Shards of other prefixes stay, and so does their tokenizer.
  options.overwrite = true;
  EXPECT_ERROR(tokenize(options), "another tokenizer", "d_", "not of this prefix");
  for (const auto& [path, content] : output())
    if (path.find("/d_") != path.npos) std::filesystem::remove(path);
  options.output_prefix = dir / "out/e";
  tokenize(options);
  EXPECT_EQ(find_tokenizer(dir / "out/e_train_000000.bin")->name(), "byte");
}

TEST_F(DocumentsTest, FilesOfAnotherTokenizerStay) {
  input(".txt", words(1, 50'000));
  std::filesystem::create_directories(dir / "out");
  write_bytes(dir / "out/merges.txt", "of a model");
  EXPECT_ERROR(tokenize(options), "out/merges.txt", "another tokenizer", "--overwrite");
  options.overwrite = true;
  tokenize(options);
  EXPECT_EQ(find_tokenizer(dir / "out/d_train_000000.bin")->name(), "gpt2");
  options.overwrite = false;
  options.output_prefix = dir / "out/e";
  tokenize(options);
}

// A link planted at the path of a future shard is replaced.
TEST_F(DocumentsTest, PlantedLinksAreNotFollowed) {
  input(".txt", words(1, 50'000));
  options.shard_tokens = 1000;
  write_bytes(dir / "victim", "precious");
  std::filesystem::create_directories(dir / "out");
  const auto plant = [&](const std::string& name) {
    std::filesystem::create_symlink(dir / "victim", dir / ("out/" + name));
  };
  plant("d_train_000000.bin.tmp");
  plant("d_train_000001.bin.tmp");
  tokenize(options);
  {
    ShardWriter writer({.prefix = dir / "out/x_", .vocab_size = 300, .shard_tokens = 4});
    plant("x_000000.bin.tmp");
    writer.append(std::vector<int32_t>{1, 2, 3});
    writer.finish();
  }
  EXPECT_EQ(read_bytes(dir / "victim"), "precious");
  EXPECT_FALSE(std::filesystem::is_symlink(dir / "out/x_000000.bin"));
  std::filesystem::create_symlink(dir / "victim", dir / "out/y.lock");
  options.output_prefix = dir / "out/y";
  EXPECT_ERROR(tokenize(options), "y.lock", "symbolic link");
}

// A few kilobytes of gzip must not become gigabytes of memory.
TEST_F(DocumentsTest, EndlessLinesAreRefused) {
  const std::string path = input(".jsonl", "{\"text\": \"" + std::string(size_t{65} << 20, 'a') + "\"}\n");
  EXPECT_ERROR(tokenize(options), path, "longer than 64 MiB", "split it");
}

TEST_F(DocumentsTest, InvalidJsonIsReportedByFileAndLine) {
  const std::string good = lines_of({"one", "two"});
  const std::string path = input(".jsonl", good + "{\"text\": 3}\n");
  EXPECT_ERROR(tokenize(options), path, cat("byte ", good.size()), "string");
  EXPECT_TRUE(output().empty());
  write_bytes(path, good + "{\"other\": \"x\"}\n");
  EXPECT_ERROR(tokenize(options), "no member \"text\"", "--key");
  write_bytes(path, good + "\n \r\n{\"other\": \"x\", \"text\": \"\"}");
  options.documents.valid_every = 0;
  EXPECT_EQ(tokenize(options).documents, 2);  // blank lines and empty texts are none
}

TEST(JsonLine, AcceptsWhatTheJsonLibraryAccepts) {
  std::string text;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::string value;
    for (uint64_t i = 0; i < 20; ++i) value += char(random_bits(seed, 5, i) % 128);
    const nlohmann::json json = {
        {"a", {1, -2.5e3, true, nullptr, {{"text", "x"}}}}, {"text", value + "é😀"}, {"z", "\"}"}};
    for (const bool ascii : {false, true}) {
      EXPECT_TRUE(json_line_text(json.dump(-1, ' ', ascii), "text", text));
      EXPECT_EQ(text, value + "é😀") << json;
    }
  }
  EXPECT_TRUE(json_line_text("{\"k\":\"\\ud83d\\ude00\\ud800x\\u0000\\/\xff\", \"k\" : \"last\\n\" }\r", "k", text));
  EXPECT_EQ(text, "last\n");
  EXPECT_TRUE(json_line_text("{\"k\":\"\\ud83d\\ude00\\ud800x\\ud800\\u0041\xff\"}", "k", text));
  EXPECT_EQ(text, "😀\uFFFDx\uFFFDA\xff");
}

TEST(JsonLine, RefusesInvalidJson) {
  std::string text;
  for (const std::string bad :
       {"", "[]", "{", "{\"text\"}", "{\"text\":}", "{\"text\":\"a}", "{\"text\":\"a\"", "{\"text\":\"a\"} x",
        "{\"text\":\"a\",}", "{\"text\":\"\\x\"}", "{\"text\":\"\\u12g4\"}", "{\"text\":\"a\tb\"}", "{\"a\":[1,]}",
        "{\"a\":tru}", "{text:1}", "{\"text\":\"\\", "{\"text\":\"\\u12"})
    EXPECT_THROW((void)json_line_text(bad, "text", text), Error) << bad;
  EXPECT_THROW((void)json_line_text("{\"a\":" + std::string(100'000, '[') + "}", "text", text), Error);
  EXPECT_FALSE(json_line_text("{\"a\":\"text\"}", "text", text));
}

// Valid JSON of another type is called by its type.
TEST(JsonLine, NamesUnexpectedTypes) {
  std::string text;
  const auto message = [&](const char* line) { return error_of([&] { (void)json_line_text(line, "text", text); }); };
  EXPECT_EQ(message("[1, 2]"), "expected an object, got an array");
  EXPECT_EQ(message("\"a\""), "expected an object, got a string");
  EXPECT_EQ(message("{\"text\": 3}"), "\"text\": expected a string, got a number");
  EXPECT_EQ(message("{\"text\": null}"), "\"text\": expected a string, got null");
  expect_parts(message("{'text': 1}"), {"not JSON", "byte 1"});
  expect_parts(message("nonsense"), {"not JSON", "an object"});
}

// Output of the programs gzip and zstd, intact and damaged.
TEST_F(DocumentsTest, CompressedTextIsDecompressed) {
  const std::string text = words(5, 400'000);
  input(".txt", text);
  options.documents.valid_every = 0;
  const auto expected = tokens_of(tokenize(options).train_shards);
  for (const auto& [name, command] : {std::pair{"gz", "gzip -c"}, std::pair{"zst", "zstd -qc"}}) {
    const std::string packed = dir / cat("packed.", name), half = dir / "half.txt", other = dir / "other.txt";
    write_bytes(half, text.substr(0, 100'000));
    write_bytes(other, text.substr(100'000));
    // Two members in one file are one text.
    const std::string call = cat("(", command, " ", half, "; ", command, " ", other, ") > ", packed, " 2>/dev/null");
    if (std::system(call.c_str()) != 0) GTEST_SKIP() << "no program " << command;
    options.documents.inputs = {packed};
    options.output_prefix = dir / cat(name, "/d");
    try {
      EXPECT_EQ(tokens_of(tokenize(options).train_shards), expected) << name;
    } catch (const Error& e) {
      expect_parts(e.what(), {"built without", "-dev"});
      continue;
    }
    const std::string bytes = read_bytes(packed);
    write_bytes(packed, bytes.substr(0, bytes.size() - 20));
    options.output_prefix = dir / cat(name, "-cut/d");
    EXPECT_ERROR(tokenize(options), packed, "ends in the middle", "byte");
    std::string damaged = bytes;
    for (size_t i = bytes.size() / 2; i < bytes.size() / 2 + 200; ++i) damaged[i] = char(~damaged[i]);
    write_bytes(packed, damaged);
    EXPECT_ERROR(tokenize(options), packed, "byte");
    EXPECT_TRUE(match_glob(dir / cat(name, "-cut/*")).empty());
  }
}

// pzstd and the seekable format begin with a skippable frame; tapes and object stores pad with zeros.
TEST_F(DocumentsTest, CompressedTextMayBeFramedAndPadded) {
  input("plain.txt", "hello there");
  options.documents.valid_every = 0;
  const auto expected = tokens_of(tokenize(options).train_shards);
  const std::string frame("\x5e\x2a\x4d\x18\x04\0\0\0abcd", 12), zeros(512, '\0');
  for (const auto& [name, command] : {std::pair{"gz", "gzip -c"}, std::pair{"zst", "zstd -qc"}}) {
    const std::string packed = dir / cat("packed.", name);
    if (std::system(cat(command, " ", options.documents.inputs.front(), " > ", packed, " 2>/dev/null").c_str()) != 0)
      GTEST_SKIP() << "no program " << command;
    const std::string bytes = read_bytes(packed);
    write_bytes(packed, name == std::string("zst") ? frame + bytes + frame : bytes + zeros);
    TokenizeOptions other = options;
    other.documents.inputs = {packed};
    other.output_prefix = dir / cat(name, "/d");
    try {
      EXPECT_EQ(tokens_of(tokenize(other).train_shards), expected) << name;
    } catch (const Error& e) {
      expect_parts(e.what(), {"built without", "-dev"});
      continue;
    }
    write_bytes(packed, bytes + std::string(100, '\0') + "garbage");
    other.overwrite = true;
    EXPECT_NE(error_of([&] { tokenize(other); }), "") << name;
  }
}

TEST_F(DocumentsTest, JsonLinesMayBeginWithAByteOrderMark) {
  const std::string lines = "{\"text\":\"ab\"}\n{\"text\":\"cd\"}\n";
  input("a.jsonl", "\xef\xbb\xbf" + lines);
  input("b.jsonl", "\xef\xbb\xbf" + lines);
  options.documents.valid_every = 0;
  const TokenizeResult result = tokenize(options);
  EXPECT_EQ(documents(result)[0], (std::vector<std::string>{"ab", "cd", "ab", "cd"}));
  EXPECT_EQ(result.warning, "");
}

// Editors on Windows write the mark at the start of a file; elsewhere it is a character of the text.
TEST_F(DocumentsTest, TextsMayBeginWithAByteOrderMark) {
  const std::string mark = "\xef\xbb\xbf";
  input("a.txt", mark + "ab" + mark + "\n");
  input("b.txt", mark);
  input("c.txt", "cd");
  for (const int64_t valid_every : {0, 4}) {  // documents, blocks
    options.documents.valid_every = valid_every;
    ::testing::internal::CaptureStderr();
    const TokenizeResult result = tokenize(options);
    const std::string notices = ::testing::internal::GetCapturedStderr();
    for (const char* file : {"a.txt", "b.txt"})
      EXPECT_NE(notices.find(cat(file, ": the UTF-8 byte order mark at the start")), std::string::npos) << notices;
    EXPECT_EQ(notices.find("c.txt"), std::string::npos) << notices;
    EXPECT_EQ(documents(result)[0], (std::vector<std::string>{"ab" + mark + "\n", "cd"}));
    options.overwrite = true;
  }
}

TEST_F(DocumentsTest, InvalidUtf8IsCounted) {
  input("good.txt", "na\xc3\xafve \xf0\x9f\x98\x80");
  input("latin.txt", "caf\xe9 caf\xe9 ");
  options.documents.valid_every = 0;
  expect_parts(tokenize(options).warning, {"2 bytes", "no UTF-8", "latin.txt", "iconv"});
}

TEST_F(DocumentsTest, WarningNamesUtf16) {
  input("wide.txt", std::string("\xff\xfeh\0i\0", 6));
  options.documents.valid_every = 0;
  const std::string warning = tokenize(options).warning;
  expect_parts(warning, {"2 bytes", "wide.txt, which looks like UTF-16", "iconv -f UTF-16 -t UTF-8"});
  EXPECT_EQ(warning.find("LATIN"), std::string::npos) << warning;
}

TEST_F(DocumentsTest, JsonLinesInUtf16AreNamed) {
  input("a.jsonl", std::string("\xff\xfe{\0\"\0t\0", 8));
  EXPECT_ERROR(tokenize(options), "a.jsonl", "UTF-16", "iconv -f UTF-16 -t UTF-8");
}

TEST(TextEncoding, WideEncodingsAreRecognized) {
  using namespace std::string_view_literals;
  EXPECT_EQ(wide_encoding("\xff\xfeh\0"sv), "UTF-16");
  EXPECT_EQ(wide_encoding("\xfe\xff\0h"sv), "UTF-16");
  EXPECT_EQ(wide_encoding("\xff\xfe\0\0h\0\0\0"sv), "UTF-32");
  EXPECT_EQ(wide_encoding("h\0e\0l\0l\0o\0 \0w\0o\0r\0l\0d\0"sv), "UTF-16");
  for (const std::string_view text :
       {""sv, "plain text"sv, "\xef\xbb\xbfmarked"sv, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"sv})
    EXPECT_EQ(wide_encoding(text), "") << text;
}

TEST(TextEncoding, OnlyInvalidBytesAreCounted) {
  const std::pair<const char*, int64_t> cases[] = {{"", 0},
                                                   {"plain ascii text", 0},
                                                   {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 0},
                                                   {"a\xe9 b", 1},
                                                   {"\xc0\xaf.", 2},          // a longer form than needed
                                                   {"\xed\xa0\x80.", 3},      // a surrogate
                                                   {"\xf4\x90\x80\x80.", 4},  // beyond U+10FFFF
                                                   {"\xff\xfe.", 2},
                                                   {"\x82\xac cut at the start", 0},
                                                   {"cut at the end \xe2\x82", 0},
                                                   {"12345678\xe9"
                                                    "12345678",
                                                    1}};
  for (const auto& [text, want] : cases) EXPECT_EQ(bytes_outside_utf8(text), want) << text;
}

TEST_F(DocumentsTest, ParquetGivesTheTokensOfJsonLines) {
  auto texts = some_texts(900);
  texts[3] = "";
  const std::string lines = input(".jsonl", lines_of(some_texts(5))), more = input(".txt", words(2, 100'000));
  const std::string rows = input(".parquet", parquet_of(texts, 100)), same = input(".jsonl", lines_of(texts));
  options.documents.block = 0;
  options.documents.inputs = {lines, same, more};
  tokenize(options);
  const auto expected = output();
  options.documents.inputs = {lines, rows, more};
  options.overwrite = true;
  const TokenizeResult result = tokenize(options);
  EXPECT_EQ(output(), expected);
  EXPECT_EQ(result.documents, 5 + 899 + 1);
}

TEST_F(DocumentsTest, ParquetThroughAPipeIsRefused) {
  expect_parts(error_of([&] {
                 const std::string path = input(".parquet", parquet_of({"one"}));
                 TextInput text(path);
               }),
               {".parquet", "give it as a file"});
}

TEST_F(DocumentsTest, ContentThatContradictsTheExtensionIsRefused) {
  for (const auto& [name, content, says] :
       {std::tuple{"a.gz", "plain text", "expected gzip"},
        {"b.jsonl.zst", "{\"text\": \"a\"}\n", "expected zstd"},
        {"c.parquet", "version https://git-lfs.github.com/spec/v1\n", "expected parquet"},
        {"c.txt", "PK\x03\x04rest", "a zip file"},
        {"d.txt.xz", "\xfd\x37zXZ", "an xz file"},
        {"d.txt.bz2", "BZh91AY&SY", "a bzip2 file"},
        {"d.txt.lz4", "\x04\x22M\x18rest", "an lz4 file"}}) {
    options.documents.inputs.clear();
    input(name, content);
    EXPECT_ERROR(tokenize(options), name, says);
  }
  options.documents.inputs.clear();
  input("e.txt", "PK and more");
  EXPECT_GT(tokenize(options).train_tokens, 0);
}

// A tokenizer that puts a space in front of a document's first word does so once, however the text is split into
// blocks.
TEST_F(DocumentsTest, TextCutIntoBlocksKeepsItsIds) {
  options.tokenizer = {.source = "tests/tokenizer/fixtures/sentencepiece/llama.model"};
  options.documents.block = 1000;
  const std::string first = words(1, 2500000), second = "word" + words(2, 3000);
  input("first.txt", first);
  input("second.txt", second);
  const auto tokenizer = make_tokenizer(options.tokenizer);
  auto whole = tokenizer->encode(first);
  for (const int32_t id : tokenizer->encode(second)) whole.push_back(id);
  std::vector<int32_t> ids;
  size_t segments = 0;
  StreamPosition from;
  for (;;) {
    DocumentStream stream(options.documents, *tokenizer, from);  // as after a kill
    const auto job = stream.next();
    if (!job) break;
    for (const Segment& s : job->segments)
      tokenizer->encoder()->append(std::string_view(job->text).substr(s.begin, s.end - s.begin), ids, s.place);
    segments += job->segments.size();
    from = job->after;
  }
  EXPECT_GT(segments, 1000u);
  EXPECT_TRUE(ids == whole);
}

}  // namespace
}  // namespace athanor
