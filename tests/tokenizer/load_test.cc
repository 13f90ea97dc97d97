// Tokenizers from files: special tokens, descriptors, folders, cuts, and everything that is refused.
#include "tokenizer/load.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tokenizer/descriptor.h"
#include "tokenizer/files.h"
#include "tokenizer_testing.h"

namespace athanor {
namespace {

using namespace testing;

std::unique_ptr<Tokenizer> fixture(const std::string& name, bool allow_special = false) {
  return make_tokenizer({.source = kFixtures + name, .allow_special = allow_special});
}

TokenizerOptions ranks() {
  return {.source = kFixtures + "ranks.tiktoken",
          .split = "cl100k",
          .eod = "<|endoftext|>",
          .special_tokens = {"<|endoftext|>=700", "<|x|>=705"}};
}

struct Load : ::testing::Test {
  TempDir dir;
};

TEST_F(Load, SpecialTokensAreTextUnlessAllowed) {
  const std::string text = "a<|endoftext|>b<|endoftext|><tool_call>c";
  for (const char* name : {"gpt2.json", "llama3.json", "qwen2.json", "gpt2"}) {
    const auto plain = fixture(name), special = fixture(name, true);
    const int32_t eod = plain->eod_id();
    const auto ids = plain->encode(text), with = special->encode(text);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), eod), 0) << name;
    EXPECT_EQ(std::count(with.begin(), with.end(), eod), 2) << name;
    EXPECT_EQ(plain->decode(ids), text);
    EXPECT_EQ(special->decode(with), text);
  }
  // Added tokens that are not special are always themselves, as in `tokenizers`.
  EXPECT_EQ(fixture("gpt2.json")->encode("<tool_call>").size(), 1u);
  TokenizerOptions options = ranks();
  options.allow_special = true;
  EXPECT_EQ(make_tokenizer(options)->encode("<|x|><|x|"),
            (std::vector<int32_t>{705, '<' - 33, '|' - 33, 87, '|' - 33}));
}

// Added tokens that are not `normalized` are found before the others, also without a normalizer. The ids are those of
// tokenizers 0.23.3.
TEST_F(Load, AddedTokensAreFoundInTwoPasses) {
  nlohmann::json json = nlohmann::json::parse(read_bytes(kFixtures + "gpt2.json"));
  const auto add = [&](int32_t id, const char* text, bool normalized) {
    json["added_tokens"].push_back(
        {{"id", id}, {"content", text}, {"normalized", normalized}, {"rstrip", !normalized}});
  };
  add(702, "ab!", true);
  add(703, "!c", false);
  add(704, "  ", true);
  write_bytes(dir / "tokenizer.json", json.dump());
  const auto tokenizer = load_tokenizer(dir.path());
  EXPECT_TRUE(tokenizer->cuts());
  EXPECT_EQ(tokenizer->encode("ab!c"), (std::vector<int32_t>{287, 703}));
  EXPECT_EQ(tokenizer->encode("ab!d"), (std::vector<int32_t>{702, 67}));
  EXPECT_EQ(tokenizer->encode("!c  ab!x"), (std::vector<int32_t>{703, 702, 87}));
  EXPECT_EQ(tokenizer->encode("  !c"), (std::vector<int32_t>{704, 703}));
}

TEST_F(Load, DecodingUndoesEncodingOfAnyBytes) {
  for (const char* name : {"gpt2.json", "llama3.json", "gpt2"})
    for (const bool special : {false, true}) {
      const auto tokenizer = fixture(name, special);
      for (uint64_t seed = 0; seed < 200; ++seed) {
        const std::string text = random_text(seed, 30);
        EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << name << ", seed " << seed;
      }
    }
}

TEST_F(Load, IdsOutsideTheVocabularyAreErrors) {
  const auto tokenizer = make_tokenizer(ranks());
  EXPECT_EQ(tokenizer->vocab_size(), 706);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{700, 705}), "<|endoftext|><|x|>");
  for (const int32_t id : {-1, 701, 706, INT32_MAX}) EXPECT_ERROR(tokenizer->decode({&id, 1}), cat(id), "706");
}

// A text split wherever last_cut() allows has the ids of the unsplit text, including special tokens.
TEST_F(Load, SafeCutsChangeNoId) {
  for (const char* name : {"gpt2.json", "llama3.json", "qwen2.json"})
    for (const bool special : {false, true}) {
      const auto tokenizer = fixture(name, special);
      ASSERT_TRUE(tokenizer->cuts());
      for (uint64_t seed = 0; seed < 100; ++seed) {
        const std::string text = random_text(seed, 60);
        const auto whole = tokenizer->encode(text);
        for (size_t to = text.size(); to > 0;) {
          const size_t cut = tokenizer->last_cut(text, 0, to);
          if (cut == 0) break;
          auto ids = tokenizer->encode(std::string_view(text).substr(0, cut));
          for (const int32_t id : tokenizer->encode(std::string_view(text).substr(cut))) ids.push_back(id);
          EXPECT_EQ(ids, whole) << name << ", seed " << seed << ", cut at " << cut;
          to = cut - 1;
        }
      }
    }
}

TEST_F(Load, DescriptorRestoresFilesAndSettings) {
  for (const bool special : {false, true}) {
    TokenizerOptions of_ranks = ranks();
    of_ranks.allow_special = special;
    for (const auto& options :
         {of_ranks, TokenizerOptions{.source = kFixtures + "gpt2", .allow_special = special},
          TokenizerOptions{.source = kFixtures + "qwen2.json", .eod = "<tool_call>", .allow_special = special}}) {
      TempDir folder;
      const auto tokenizer = make_tokenizer(options);
      write_tokenizer(*tokenizer, folder / "out");
      const auto again = load_tokenizer(folder / "out");
      EXPECT_EQ(again->name(), tokenizer->name());
      EXPECT_EQ(again->vocab_size(), tokenizer->vocab_size());
      EXPECT_EQ(again->eod_id(), tokenizer->eod_id());
      const std::string text = "It's <|endoftext|> 12345 <|x|>\n";
      EXPECT_EQ(again->encode(text), tokenizer->encode(text));
      const auto files = tokenizer_files_of(folder / "out/x.bin");
      ASSERT_EQ(files.size(), tokenizer->files().size());
      EXPECT_EQ(files[0].name, kTokenizerFile);
      EXPECT_EQ(files[0].content, tokenizer->files()[0].content);
      write_bytes(folder / "out/" + files[1].name, read_bytes(folder / "out/" + files[1].name) + "\n");
      EXPECT_ERROR(load_tokenizer(folder / "out"), "not those that it was written with");
      std::filesystem::remove(folder / "out/" + files[1].name);
      EXPECT_ERROR(load_tokenizer(folder / "out"), files[1].name);
    }
  }
}

// Conversations are tokenized with both: the template's text has special tokens, the user's has none.
TEST_F(Load, OptionsAllowAndForbidTheSpecialTokensOfADescriptor) {
  const std::string eod = "<|endoftext|>";
  write_tokenizer(*make_tokenizer({.source = kFixtures + "gpt2"}), dir / "plain");
  EXPECT_GT(make_tokenizer({.source = dir / "plain"})->encode(eod).size(), 1u);
  const auto allowed = make_tokenizer({.source = dir / "plain", .allow_special = true});
  EXPECT_EQ(allowed->encode(eod), std::vector<int32_t>{allowed->eod_id()});
  write_tokenizer(*allowed, dir / "allowed");
  EXPECT_EQ(make_tokenizer({.source = dir / "allowed"})->encode(eod).size(), 1u);
  EXPECT_GT(make_tokenizer({.source = dir / "allowed", .forbid_special = true})->encode(eod).size(), 1u);
}

TEST_F(Load, OptionsWithoutEffectAreRefused) {
  write_tokenizer(*make_tokenizer({.source = kFixtures + "gpt2"}), dir / "out");
  for (const std::string& source : {std::string("byte"), std::string(dir / "out")}) {
    EXPECT_ERROR(make_tokenizer({.source = source, .split = "gpt2"}), "--split", "no effect");
    EXPECT_ERROR(make_tokenizer({.source = source, .eod = "x"}), "--eod", "no effect");
    EXPECT_ERROR(make_tokenizer({.source = source, .special_tokens = {"x=1"}}), "--special-token", "no effect");
  }
}

TEST_F(Load, FindsTheTokenizerAndEosOfModelFolders) {
  EXPECT_ERROR(load_tokenizer(dir.path()), dir.path(), "no tokenizer", "tokenizer.json");
  std::filesystem::copy(kFixtures + "llama3.json", dir / "tokenizer.json");
  EXPECT_EQ(load_tokenizer(dir.path())->name(), "huggingface");
  EXPECT_EQ(load_tokenizer(dir.path())->decode(std::vector<int32_t>{load_tokenizer(dir.path())->eod_id()}),
            "<|endoftext|>");
  write_bytes(dir / "tokenizer_config.json", "{\"eos_token\": {\"content\": \"<tool_call>\"}}");
  EXPECT_EQ(load_tokenizer(dir.path())->decode(std::vector<int32_t>{load_tokenizer(dir.path())->eod_id()}),
            "<tool_call>");
  write_bytes(dir / "tokenizer_config.json", "{\"eos_token\": \"<nothing>\"}");
  EXPECT_ERROR(load_tokenizer(dir.path()), "<nothing>", "--eod");
  std::filesystem::remove(dir / "tokenizer.json");
  std::filesystem::copy(kFixtures + "gpt2/encoder.json", dir / "vocab.json");
  EXPECT_ERROR(load_tokenizer(dir.path()), "merges.txt");
  std::filesystem::copy(kFixtures + "gpt2/vocab.bpe", dir / "merges.txt");
  std::filesystem::remove(dir / "tokenizer_config.json");
  EXPECT_EQ(load_tokenizer(dir.path())->name(), "gpt2");
}

TEST_F(Load, InvalidRankFilesAreErrors) {
  const std::string path = dir / "x.tiktoken", good = read_bytes(kFixtures + "ranks.tiktoken");
  const auto message = [&](const std::string& content, auto change) {
    write_bytes(path, content);
    TokenizerOptions options = ranks();
    options.source = path;
    change(options);
    return error_of([&] { make_tokenizer(options); });
  };
  const auto same = [](TokenizerOptions&) {};
  expect_parts(message("", same), {path, "without a token"});
  expect_parts(message("YQ== 0\nYg 1\n", same), {path, "line 2 (byte 7)", "base64"});
  expect_parts(message("YQ==\n", same), {"line 1", "base64"});
  expect_parts(message("YQ== -1\n", same), {"rank", "-1"});
  expect_parts(message("YQ== 99999999999\n", same), {"rank", "99999999999"});
  expect_parts(message("YQ== 1x\n", same), {"rank", "1x"});
  expect_parts(message("YQ== 0\nYg== 0\n", same), {"line 2", "rank 0", "twice"});
  expect_parts(message("YQ== 0\nYQ== 1\n", same), {path, "rank 1", "twice"});
  expect_parts(message("YQ== 0\n", same), {path, "the byte 0", "byte-level"});
  expect_parts(message(std::string(6000, 'A') + " 0\n", same), {"4500 bytes"});
  expect_parts(message(good, [](auto& o) { o.split = ""; }), {path, "700 ranks", "--split", "o200k"});
  expect_parts(message(good, [](auto& o) { o.eod = "<|y|>"; }), {path, "--eod"});
  expect_parts(message(good, [](auto& o) { o.special_tokens = {"<|x|>"}; }), {"TEXT=ID", "<|x|>"});
  expect_parts(message(good, [](auto& o) { o.special_tokens = {"=3"}; }), {"TEXT=ID"});
  expect_parts(message(good, [](auto& o) { o.special_tokens[0] = "<|endoftext|>=5"; }), {"id 5 is a rank"});
  expect_parts(message(good, [](auto& o) { o.source = "no/such"; }), {"no/such", "\"byte\""});
}

// Everything that tokenizer.json can ask for and that is not there is refused by its name.
TEST_F(Load, UnsupportedTokenizerJsonsAreRefusedByName) {
  const std::string path = dir / "tokenizer.json", good = read_bytes(kFixtures + "llama3.json");
  const auto message = [&](auto change) {
    nlohmann::json json = nlohmann::json::parse(good);
    change(json);
    write_bytes(path, json.dump());
    return error_of([&] { load_tokenizer(path); });
  };
  expect_parts(message([](auto& j) { j["model"]["type"] = "WordPiece"; }), {path, "WordPiece", "BPE"});
  expect_parts(message([](auto& j) { j["model"]["type"] = "Unigram"; }), {"Unigram", "ByteLevel"});
  expect_parts(message([](auto& j) { j["model"]["byte_fallback"] = true; }), {"byte_fallback", "byte-level"});
  expect_parts(message([](auto& j) { j["model"]["end_of_word_suffix"] = "</w>"; }), {"end_of_word_suffix", "</w>"});
  expect_parts(message([](auto& j) { j["model"]["dropout"] = 0.1; }), {"dropout", "0.1"});
  expect_parts(message([](auto& j) { j["model"].erase("vocab"); }), {"vocab"});
  expect_parts(message([](auto& j) { j["model"]["vocab"]["a"] = "x"; }), {"\"a\"", "a number"});
  expect_parts(message([](auto& j) { j["model"]["vocab"]["a"] = 1 << 30; }), {"\"a\"", "1073741824"});
  expect_parts(message([](auto& j) { j["model"]["vocab"]["a"] = 3; }), {"id 3", "twice"});
  expect_parts(message([](auto& j) { j["model"]["vocab"].erase("a"); }), {"\"a\" is not in the vocabulary"});
  expect_parts(message([](auto& j) { j["model"]["merges"][5] = "one"; }), {"merges[5]", "two tokens"});
  expect_parts(message([](auto& j) { j["model"]["merges"][5] = {"q", "zz"}; }), {"merges[5]", "not in the vocabulary"});
  expect_parts(message([](auto& j) { j["normalizer"] = {{"type", "Lowercase"}}; }), {"normalizer", "Lowercase", "NFC"});
  expect_parts(message([](auto& j) { j["pre_tokenizer"] = {{"type", "Digits"}}; }), {"unk_token", "ByteLevel"});
  expect_parts(message([](auto& j) { j["pre_tokenizer"] = nullptr; }), {"unk_token", "byte_fallback", "ByteLevel"});
  expect_parts(message([](auto& j) {
                 j["normalizer"] = {{"type", "Replace"}, {"content", ""}};
               }),
               {"Replace", "String"});
  expect_parts(message([](auto& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }),
               {"add_prefix_space"});
  const auto first_split = [&](auto change) {
    return message([&](auto& j) { change(j["pre_tokenizer"]["pretokenizers"][0]); });
  };
  expect_parts(first_split([](auto& j) { j["behavior"] = "Merged"; }), {"Merged"});
  expect_parts(first_split([](auto& j) { j["pattern"] = {{"String", ""}}; }), {"pattern", "empty"});
  expect_parts(first_split([](auto& j) { j["pattern"] = {{"Text", ""}}; }), {"pattern", "Regex"});
  expect_parts(first_split([](auto& j) { j["type"] = "Metaspace"; }), {"Metaspace"});
  expect_parts(first_split([](auto& j) { j["type"] = "Whitespace"; }), {"pre_tokenizer", "Whitespace"});
  expect_parts(first_split([](auto& j) {
                 j = {{"type", "Punctuation"}, {"behavior", "Apart"}};
               }),
               {"Punctuation", "Apart"});
  expect_parts(first_split([](auto& j) {
                 j = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
               }),
               {"second ByteLevel"});
  expect_parts(message([](auto& j) { j["added_tokens"][0]["single_word"] = true; }), {"single_word", "<|endoftext|>"});
  expect_parts(message([](auto& j) {
                 j["added_tokens"][0]["lstrip"] = true;
                 j["added_tokens"][0]["normalized"] = true;
               }),
               {"lstrip", "normalized", "<|endoftext|>"});
  expect_parts(message([](auto& j) { j["added_tokens"][0]["id"] = -1; }), {"added_tokens"});
  expect_parts(message([](auto& j) { j["added_tokens"][0]["id"] = 5; }), {"added_tokens", "another token"});
  expect_parts(message([](auto& j) { j["added_tokens"] = nlohmann::json::array(); }), {"--eod"});
  for (const char* bad : {"", "{", "[]", "{\"model\": 3}", "3"}) {
    write_bytes(path, bad);
    EXPECT_ERROR(load_tokenizer(path), path);
  }
  write_bytes(path, good.substr(0, good.size() / 2));
  EXPECT_ERROR(load_tokenizer(path), path, "not JSON", "column");
  EXPECT_THROW(make_tokenizer({.source = kFixtures + "gpt2.json", .split = "gpt2"}), Error);
}

TEST_F(Load, UnsupportedCharacterTokenizerJsonsAreRefusedByName) {
  const std::string good = read_bytes(kFixtures + "sentencepiece/pieces.json");
  const auto message = [&](auto change) {
    nlohmann::json json = nlohmann::json::parse(good);
    change(json);
    return error_of([&] { parse_huggingface(json.dump(), "here"); });
  };
  const auto metaspace = [](const char* key, const nlohmann::json& value) {
    nlohmann::json json = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
    json[key] = value;
    return json;
  };
  expect_parts(message([](auto& j) { j["model"]["vocab"].erase("<0x41>"); }), {"byte_fallback", "255 of the 256"});
  expect_parts(message([](auto& j) { j["model"]["unk_token"] = "<none>"; }), {"unk_token", "<none>"});
  expect_parts(message([](auto& j) {
                 j["model"]["unk_token"] = nullptr;
                 j["model"]["byte_fallback"] = false;
               }),
               {"unk_token", "byte_fallback", "get lost"});
  expect_parts(message([](auto& j) { j["decoder"] = nullptr; }), {"decoder"});
  expect_parts(message([](auto& j) { j["decoder"] = {{"type", "WordPiece"}}; }), {"decoder", "WordPiece", "Fuse"});
  expect_parts(message([](auto& j) {
                 j["decoder"] = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
               }),
               {"Strip", "each token"});
  expect_parts(message([&](auto& j) { j["pre_tokenizer"] = metaspace("replacement", "_"); }), {"replacement", "_"});
  expect_parts(message([&](auto& j) { j["pre_tokenizer"] = metaspace("prepend_scheme", "last"); }), {"last", "first"});
  expect_parts(message([&](auto& j) { j["pre_tokenizer"] = metaspace("add_prefix_space", false); }),
               {"add_prefix_space", "always"});
  expect_parts(message([&](auto& j) {
                 j["pre_tokenizer"] = {{"type", "Sequence"},
                                       {"pretokenizers", {{{"type", "Digits"}}, metaspace("split", true)}}};
               }),
               {"Metaspace", "others"});
}

TEST_F(Load, InvalidGpt2FilesAreErrors) {
  const std::string vocab = dir / "encoder.json", merges = dir / "vocab.bpe";
  const auto message = [&](const std::string& v, const std::string& m) {
    write_bytes(vocab, v);
    write_bytes(merges, m);
    return error_of([&] { load_tokenizer(vocab); });
  };
  const std::string good = read_bytes(kFixtures + "gpt2/encoder.json");
  expect_parts(message("{", ""), {vocab, "not JSON"});
  expect_parts(message("[]", ""), {vocab, "JSON object"});
  expect_parts(message("{\"a\": 1.5}", ""), {vocab, "\"a\"", "1.5"});
  expect_parts(message(good, "#version: 0.2\na b c\n"), {merges, "line 2 (byte 14)", "a b c"});
  expect_parts(message(good, "a\n"), {merges, "line 1"});
  expect_parts(message(good, "q zz\n"), {merges, "line 1", "not in the vocabulary"});
  expect_parts(message("{\"a\": 0, \"<|endoftext|>\": 1}", ""), {"byte-level"});
}

// Patterns that are not built in run on PCRE2, or are refused by a program without it.
TEST_F(Load, OtherSplitPatternsUsePcre2) {
  nlohmann::json json = nlohmann::json::parse(read_bytes(kFixtures + "gpt2.json"));
  const auto split = [](const char* pattern) {
    return nlohmann::json{
        {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  };
  const auto level = json["pre_tokenizer"];
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split("\\p{N}{1,3}"), split("[一-龥]+"), level}}};
  write_bytes(dir / "tokenizer.json", json.dump());
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = load_tokenizer(dir.path());
  } catch (const Error& e) {
    expect_parts(e.what(), {"PCRE2", "libpcre2-dev"});
    GTEST_SKIP() << "built without PCRE2";
  }
  EXPECT_FALSE(tokenizer->cuts());
  EXPECT_EQ(tokenizer->last_cut("some words here", 0, 12), 0u);
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const std::string text = random_text(seed, 30);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << "seed " << seed;
  }
  auto& first = json["pre_tokenizer"]["pretokenizers"][0];
  for (const bool alone : {true, false}) {
    first = {{"type", "Digits"}, {"individual_digits", alone}};
    EXPECT_EQ(parse_huggingface(json.dump(), "here").splitter.patterns()[0], alone ? "numbers-1" : "numbers");
  }
  first["individual_digits"] = 3;
  EXPECT_ERROR(parse_huggingface(json.dump(), "here"), "here", "Digits", "individual_digits", "3");
  first = split("(");
  write_bytes(dir / "tokenizer.json", json.dump());
  EXPECT_ERROR(load_tokenizer(dir.path()), "split pattern (", "at character");
}

// Digit runs, also of Unicode 16, are split into groups of the allowed length; safe cuts exist only between documents.
TEST_F(Load, DigitRunsAreSplit) {
  const std::string text = "ab1234 5\xf0\x90\xb5\x80x";  // U+10D40: a digit of Unicode 16
  const auto pieces = [&](const char* pattern) {
    Splitter splitter;
    splitter.add(pattern);
    EXPECT_FALSE(splitter.cuts());
    std::vector<std::string> all;
    splitter.for_each(CharTable(), text, [&](std::string_view piece) { all.emplace_back(piece); });
    return all;
  };
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces("\\p{N}+"), (Pieces{"ab", "1234", " ", "5\xf0\x90\xb5\x80", "x"}));
  EXPECT_EQ(pieces("numbers-3"), (Pieces{"ab", "123", "4", " ", "5\xf0\x90\xb5\x80", "x"}));
  EXPECT_EQ(pieces("\\p{N}"), (Pieces{"ab", "1", "2", "3", "4", " ", "5", "\xf0\x90\xb5\x80", "x"}));
}

TEST(Descriptor, MalformedDescriptorsAreErrors) {
  for (const char* bad :
       {"{\"type\": \"tiktoken\", \"files\": [\"../x\"]}", "{\"type\": \"tiktoken\", \"files\": [\"\"]}",
        "{\"type\": \"tiktoken\", \"files\": [\"..\"]}", "{\"type\": \"tiktoken\", \"files\": 3}",
        "{\"type\": \"tiktoken\", \"eod_id\": 99999999999}", "{\"type\": \"tiktoken\", \"eod_id\": []}",
        "{\"type\": \"tiktoken\", \"special_tokens\": [1]}", "{\"type\": \"byte\", \"vocab_size\": -1}",
        "{\"type\": \"tiktoken\", \"special_tokens\": {\"a\": \"b\"}}"})
    EXPECT_ERROR(parse_descriptor(bad, "here"), "here");
}

}  // namespace
}  // namespace athanor
