// SentencePiece's models: ids and texts are those of the package (fixtures/make_sentencepiece.py recorded them), cuts
// change no id, and damaged files are refused.
#include <ctime>
#include <nlohmann/json.hpp>

#include "tokenizer/files.h"
#include "tokenizer/load.h"
#include "tokenizer/token_bytes.h"
#include "tokenizer/unicode.h"
#include "tokenizer_testing.h"

namespace athanor {
namespace {

using namespace testing;

const std::string kModels = kFixtures + "sentencepiece/";

// A byte for each character, the number of which it is.
std::string bytes_of(const nlohmann::json& shown) {
  const auto text = shown.get<std::string>();
  std::string bytes;
  for (size_t at = 0; at < text.size(); at += char_at(text, at).bytes) bytes += char(char_at(text, at).code);
  return bytes;
}

const nlohmann::json& piece_cases() {
  static const auto all = nlohmann::json::parse(read_bytes(kModels + "cases.json"));
  return all;
}

std::vector<std::string> piece_texts() {
  std::vector<std::string> all;
  for (const auto& text : piece_cases()["texts"]) all.push_back(bytes_of(text));
  return all;
}

std::unique_ptr<Tokenizer> model(const std::string& name, bool allow_special = false) {
  return make_tokenizer({.source = kModels + name, .eod = "</s>", .allow_special = allow_special});
}

std::string digest(const std::vector<int32_t>& ids, const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  const auto add = [&](uint32_t byte) { hash = (hash ^ byte) * 0x100000001b3ull; };
  for (const int32_t id : ids)
    for (int byte = 0; byte < 4; ++byte) add(uint32_t(id) >> (8 * byte) & 0xff);
  for (const char c : text) add(uint8_t(c));
  char hex[17];
  std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(hash));
  return std::string(hex, 8);
}

// Compares digests of encoded texts and of decoded lists of ids; the first digests are those of texts.
void expect_cases(const Tokenizer& tokenizer, const nlohmann::json& digests, const std::string& name) {
  const auto lists = piece_cases()["lists"].get<std::vector<std::vector<int32_t>>>();
  auto texts = piece_texts();
  ASSERT_GT(digests.size(), lists.size() + 100);
  texts.resize(digests.size() - lists.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto ids = tokenizer.encode(texts[i]);
    const auto back = tokenizer.decode(ids);
    ASSERT_EQ(digest(ids, back), digests[i]) << name << ", text " << i << ": \"" << texts[i] << "\", ids "
                                             << nlohmann::json(ids) << ", back: \"" << back << "\"";
  }
  for (size_t i = 0; i < lists.size(); ++i) {
    const auto text = tokenizer.decode(lists[i]);
    ASSERT_EQ(digest(lists[i], text), digests[texts.size() + i])
        << name << ", ids " << nlohmann::json(lists[i]) << ": \"" << text << "\"";
  }
}

TEST(SentencePiece, IdsAndTextsMatchTheSentencePiecePackage) {
  ASSERT_GE(piece_cases()["models"].size(), 4u);
  for (const auto& [name, digests] : piece_cases()["models"].items()) expect_cases(*model(name), digests, name);
}

TEST(SentencePiece, LongTextsMatchTheSentencePiecePackage) {
  auto texts = piece_texts();
  texts.resize(piece_cases()["plain_texts"].get<size_t>());
  std::string all, text;
  for (const std::string& one : texts) all += one;
  for (int i = 0; i < 60; ++i) text += all;
  for (const auto& [name, expected] : piece_cases()["long"].items())
    EXPECT_EQ(digest(model(name)->encode(text), ""), expected) << name << ", " << text.size() << " bytes";
}

// Replaces the members of pieces.json that make it a file of another family.
std::string write_changed(const TempDir& dir, const std::string& name) {
  auto file = nlohmann::json::parse(read_bytes(kModels + "pieces.json"));
  for (const auto& [key, value] : piece_cases()["changes"][name].items())
    if (key == "model" && !value.contains("type"))
      file[key].update(value);
    else
      file[key] = value;
  write_bytes(dir / "tokenizer.json", file.dump());
  return dir / "tokenizer.json";
}

TEST(SentencePiece, TokenizerJsonsMatchTheTokenizersLibrary) {
  TempDir dir;
  ASSERT_GE(piece_cases()["files"].size(), 16u);
  for (const auto& [name, digests] : piece_cases()["files"].items()) {
    const bool special = name.ends_with(" special");
    const std::string path = write_changed(dir, special ? name.substr(0, name.size() - 8) : name);
    expect_cases(*make_tokenizer({.source = path, .eod = "</s>", .allow_special = special}), digests, name);
  }
}

// Counts the positions at which last_cut() splits texts, and expects the ids of the unsplit text there, with the second
// part tokenized as a continuation.
int expect_cuts_change_no_id(const Tokenizer& tokenizer, const std::string& name) {
  int cuts = 0;
  const auto encoder = tokenizer.encoder();
  for (const std::string& part : piece_texts()) {
    if (part.size() > 100) continue;
    const std::string text = part + " word\n" + part + "x y q a\nq b</s> c\n\nd";
    const auto whole = tokenizer.encode(text);
    for (size_t to = text.size(); to > 0; --to, ++cuts) {
      to = tokenizer.last_cut(text, 0, to);
      if (to == 0) break;
      std::vector<int32_t> ids;
      encoder->append(text.substr(0, to), ids);
      encoder->append(text.substr(to), ids, TextPlace::inside);
      EXPECT_EQ(ids, whole) << name << ", cut at " << to << " of: " << text;
    }
  }
  return cuts;
}

TEST(SentencePiece, SafeCutsChangeNoId) {
  TempDir dir;
  for (const bool special : {false, true}) {
    for (const char* name : {"llama.model", "gemma.model"})
      EXPECT_GT(expect_cuts_change_no_id(*model(name, special), name), 300) << name;
    for (const char* name : {"llama2", "llama2 normalized", "gemma", "mistral", "always", "never", "unigram"}) {
      const std::string path = write_changed(dir, name);
      const auto tokenizer = make_tokenizer({.source = path, .eod = "</s>", .allow_special = special});
      EXPECT_GT(expect_cuts_change_no_id(*tokenizer, name), 300) << name;
    }
  }
  for (const bool normalized : {false, true}) {  // behind a token, a space is put in front of the text
    auto file = nlohmann::json::parse(read_bytes(write_changed(dir, "llama2")));
    file["added_tokens"].push_back({{"id", 620}, {"content", "y q a"}, {"normalized", normalized}});
    write_bytes(dir / "tokenizer.json", file.dump());
    const auto tokenizer = make_tokenizer({.source = dir / "tokenizer.json", .eod = "</s>"});
    EXPECT_GT(expect_cuts_change_no_id(*tokenizer, "llama2 and a token"), 200) << normalized;
  }
  for (const char* name : {"rules.model", "suffix.model"}) EXPECT_FALSE(model(name)->cuts()) << name;
  for (const char* name : {"unigram.model", "unigram-rules.model"}) EXPECT_FALSE(model(name)->cuts()) << name;
  for (const auto& [name, cuts] :
       {std::pair{"whole", true}, {"splits", false}, {"unigram", true}, {"unigram unknown", false}})
    EXPECT_EQ(load_tokenizer(write_changed(dir, name))->cuts(), cuts) << name;
}

TEST(SentencePiece, IncrementalDecodingMatchesDecodingAtOnce) {
  for (const char* name : {"llama.model", "gemma.model"}) {
    const auto tokenizer = model(name);
    for (const std::string text : {" The world\n 中文 é 😀  x", "😀"}) {
      const auto ids = tokenizer->encode(text);
      std::string parts;
      int64_t bytes = 0;
      const auto bytes_of_ids = bytes_of_tokens(tokenizer.get(), tokenizer->vocab_size());
      for (size_t i = 0; i < ids.size(); ++i) {
        parts += tokenizer->decode({&ids[i], 1}, i == 0 ? TextPlace::after_token : TextPlace::inside);
        bytes += bytes_of_ids[size_t(ids[i])];
      }
      EXPECT_EQ(parts, text) << name;
      EXPECT_EQ(bytes, int64_t(text.size() + (name[0] == 'l'))) << name;  // the space in front counts
    }
  }
}

TEST(SentencePiece, ControlSymbolsAreTextUnlessAllowed) {
  const auto plain = model("llama.model"), special = model("llama.model", true);
  EXPECT_EQ(plain->eod_id(), 2);
  const auto ids = special->encode("a</s>b");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 1);
  auto apart = plain->encode("a");
  apart.push_back(2);
  for (const int32_t id : plain->encode("b")) apart.push_back(id);  // tokenized as a separate text
  EXPECT_EQ(ids, apart);
}

// A field of a protobuf message.
std::string field(int number, const std::string& bytes) {
  EXPECT_LT(bytes.size(), 128u);
  return std::string{char(number << 3 | 2), char(bytes.size())} + bytes;
}
std::string field(int number, int64_t value) { return std::string{char(number << 3), char(value)}; }

struct ModelFile : ::testing::Test {
  TempDir dir;
  const std::string llama = read_bytes(kModels + "llama.model"), unigram = read_bytes(kModels + "unigram.model");
  std::string path = dir / "x.model";
  std::unique_ptr<Tokenizer> load(const std::string& content) const {
    write_bytes(path, content);
    return make_tokenizer({.source = path});
  }
  std::string message(const std::string& content) const {
    return error_of([&] { load(content); });
  }
  // One more piece.
  static std::string piece(const std::string& text, int type) {
    return field(1, field(1, text) + field(3, int64_t{type}));
  }
};

TEST_F(ModelFile, SelfTestsAreRun) {
  const auto test = [](const std::string& text, const std::string& pieces) {
    return field(4, field(1, field(1, text) + field(2, pieces)));
  };
  EXPECT_NO_THROW(load(llama + test("a\n", "\u2581a <0x0A>")));
  EXPECT_NO_THROW(load(read_bytes(kModels + "rules.model") + test("a\U0001f600", "\u2581a \U0001f600")));
  EXPECT_NO_THROW(load(unigram + test("a\n", "\u2581a <0x0A>")));
  expect_parts(message(unigram + test("a\n", "\u2581a <0x0A> a")), {path, "self_test_data"});
  expect_parts(message(llama + test("a\n", "\u2581a <0x0B>")), {path, "self_test_data", "a\n"});
}

TEST_F(ModelFile, UnsupportedFeaturesAreRefusedByName) {
  expect_parts(message(llama + field(2, field(3, int64_t{4}))), {path, "type 4", "BPE"});
  expect_parts(message(llama + field(3, field(5, int64_t{0}))), {path, "escape_whitespaces"});
  expect_parts(message(llama + field(5, field(2, std::string("x")))), {path, "denormalizer"});
  expect_parts(message(llama + piece("zq", 5)), {"\"zq\"", "unused", "BPE"});
  const auto with_unused = load(unigram + piece("okenizer", 5)), without = load(unigram);
  EXPECT_EQ(with_unused->encode("a tokenizer"), without->encode("a tokenizer"));
  EXPECT_EQ(with_unused->decode(std::vector<int32_t>{620}), "okenizer");
}

TEST_F(ModelFile, DamagedFilesAreRefused) {
  expect_parts(message("\n"), {path, "byte 0"});
  expect_parts(message("\n\x05"), {path, "byte 0", "field 1", "5 bytes"});
  expect_parts(message(llama + piece("", 1)), {"piece 620", "bytes"});
  expect_parts(message(llama + piece(std::string("a\0b", 3), 1)), {"piece 620", "zero byte"});
  expect_parts(message(llama + piece("zq", 7)), {"piece 620", "type 7"});
  expect_parts(message(llama + piece("<s>", 1)), {"piece 620", "twice"});
  expect_parts(message(llama + piece("<?>", 2)), {"piece 620", "second"});
  expect_parts(message(llama + field(2, field(3, std::string("x")))), {"field 3", "kind"});
  expect_parts(message(field(1, field(1, std::string("a")))), {path, "unknown"});
  expect_parts(message(piece("<unk>", 2) + piece("<0x0A>", 6)), {path, "byte_fallback"});
  expect_parts(message(llama + field(3, field(2, std::string("abcdefgh")))), {path, "precompiled_charsmap"});
  expect_parts(message(llama + field(3, field(2, std::string("\4\0\0\0\0\0\0\0a", 9)))),
               {"precompiled_charsmap", "end"});
  expect_parts(message(llama + field(3, field(2, std::string("\4\0\0\0\1\0\0\x80\0", 9)))),
               {"precompiled_charsmap", "byte 1"});
}

// Files that end early or have a byte changed give an Error or a tokenizer.
TEST_F(ModelFile, DamageAnywhereGivesAnErrorOrATokenizer) {
  for (const char* name : {"rules.model", "gemma.model", "unigram.model"}) {
    const std::string good = read_bytes(kModels + name);
    const auto survive = [&](const std::string& content) {
      try {
        parse_sentencepiece(content, "here");
      } catch (const Error& e) {
        expect_parts(e.what(), {"here"});
      }
    };
    for (uint64_t i = 0; i < 300; ++i) {
      survive(good.substr(0, random_bits(5, 1, i) % good.size()));
      std::string changed = good;
      changed[random_bits(5, 2, i) % good.size()] = char(random_bits(5, 3, i));
      survive(changed);
    }
  }
}

// A word of a megabyte takes at most linear time in every model type.
TEST(SentencePiece, LongWordsTakeLinearTime) {
  for (const char* name : {"llama.model", "gemma.model", "suffix.model", "unigram.model"}) {
    const auto tokenizer = model(name);
    const auto seconds_of = [&](size_t size) {
      std::string text;
      for (size_t i = 0; i < size; ++i) text += char('a' + random_bits(8, 1, i) % 26);
      const std::clock_t begin = std::clock();
      EXPECT_GT(tokenizer->encode(text).size(), size / 10);
      return double(std::clock() - begin) / CLOCKS_PER_SEC;
    };
    const double short_one = seconds_of(100'000);
    EXPECT_LT(seconds_of(1'000'000), 40 * short_one + 0.5) << name;
  }
}

}  // namespace
}  // namespace athanor
