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

void expect_cases(const Tokenizer& tokenizer, const nlohmann::json& expected, const std::string& name) {
  const auto all = piece_texts();
  ASSERT_EQ(expected["ids"].size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const auto ids = tokenizer.encode(all[i]);
    ASSERT_EQ(ids, expected["ids"][i].get<std::vector<int32_t>>()) << name << ", text " << i << ": " << all[i];
    EXPECT_EQ(tokenizer.decode(ids), bytes_of(expected["decoded"][i])) << name << ", text " << i;
  }
  for (size_t i = 0; i < expected["lists"].size(); ++i)
    EXPECT_EQ(tokenizer.decode(expected["lists"][i].get<std::vector<int32_t>>()),
              bytes_of(expected["lists_decoded"][i]))
        << name << ", ids " << i;
}

TEST(SentencePiece, IdsAndTextsAreThoseOfThePackage) {
  ASSERT_GE(piece_cases()["models"].size(), 4u);
  for (const auto& [name, expected] : piece_cases()["models"].items()) expect_cases(*model(name), expected, name);
}

// A text cut wherever last_cut() allows has the ids of the whole, if the second part is no text of its own.
TEST(SentencePiece, CutsChangeNoId) {
  for (const char* name : {"llama.model", "gemma.model"})
    for (const bool special : {false, true}) {
      const auto tokenizer = model(name, special);
      ASSERT_TRUE(tokenizer->cuts()) << name;
      int cuts = 0;
      for (const std::string& part : piece_texts()) {
        const std::string text = part + " word\n" + part + "x y q a\nq b</s> c\n\nd";
        const auto whole = tokenizer->encode(text);
        for (size_t to = text.size(); to > 0;) {
          const size_t cut = tokenizer->last_cut(text, 0, to);
          if (cut == 0) break;
          auto ids = tokenizer->encode(text.substr(0, cut));
          for (const int32_t id : tokenizer->encode(text.substr(cut), TextPlace::inside)) ids.push_back(id);
          EXPECT_EQ(ids, whole) << name << ", cut at " << cut << " of: " << text;
          to = cut - 1;
          ++cuts;
        }
      }
      EXPECT_GT(cuts, 300) << name;
    }
  EXPECT_FALSE(model("rules.model")->cuts());
  EXPECT_FALSE(model("suffix.model")->cuts());
}

TEST(SentencePiece, TextsDecodedPartByPartAreTheTextsOfTheWhole) {
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
  for (const int32_t id : plain->encode("b")) apart.push_back(id);  // a text of its own
  EXPECT_EQ(ids, apart);
}

}  // namespace
}  // namespace athanor
