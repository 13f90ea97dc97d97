// Ids are those of `tokenizers` and `tiktoken`, for every format and split pattern: fixtures/make.py recorded them, and
// fixtures/make_forms.py those of files that normalize, split and strip otherwise.
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tokenizer/load.h"
#include "tokenizer/normal_form.h"
#include "tokenizer/unicode.h"
#include "tokenizer_testing.h"

namespace athanor {
namespace {

using namespace testing;

nlohmann::json cases() { return nlohmann::json::parse(read_bytes(kFixtures + "cases.json")); }

// "ranks.tiktoken gpt2" is a rank file and the pattern to read it with.
std::unique_ptr<Tokenizer> tokenizer_of(const std::string& name) {
  const size_t space = name.find(' ');
  TokenizerOptions options{.source = kFixtures + name.substr(0, space)};
  if (space != name.npos) {
    options.split = name.substr(space + 1);
    options.eod = "<|endoftext|>";
    options.special_tokens = {"<|endoftext|>=700"};
  }
  return make_tokenizer(options);
}

// The texts of sweep() in make.py.
std::vector<std::string> sweep() {
  const std::vector<std::pair<uint32_t, uint32_t>> dense = {{0, 0x3400},      {0xa000, 0xac00},  {0xd7a4, 0xd800},
                                                            {0xe000, 0xe100}, {0xf900, 0x17000}, {0x18cd0, 0x20000}};
  std::vector<std::string> texts;
  size_t count = 0;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    bool wanted = code % 61 == 0;
    for (const auto& [first, end] : dense) wanted |= code >= first && code < end;
    if (!wanted || (code >= 0xd800 && code < 0xe000)) continue;
    if (count++ % 256 == 0) texts.emplace_back();
    std::string c;
    append_utf8(c, code);
    texts.back() += "a" + c + " " + c + c + "1" + c + "'s\n";
  }
  return texts;
}

TEST(Oracles, ShortTextsMatchReferenceIds) {
  const nlohmann::json all = cases();
  const auto texts = all["texts"].get<std::vector<std::string>>();
  ASSERT_GT(texts.size(), 100u);
  ASSERT_EQ(all["ids"].size(), 6u);
  for (const auto& [name, ids] : all["ids"].items()) {
    const auto tokenizer = tokenizer_of(name);
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto got = tokenizer->encode(texts[i]);
      EXPECT_EQ(got, ids[i].get<std::vector<int32_t>>()) << name << ", text " << i << ": " << texts[i];
      if (name != "qwen2.json") {
        EXPECT_EQ(tokenizer->decode(got), texts[i]) << name;
      }
    }
  }
}

TEST(Oracles, EveryCharacterMatchesReferenceIds) {
  const nlohmann::json all = cases();
  const auto texts = sweep();
  for (const auto& [name, digest] : all["sweep"].items()) {
    const auto encoder = tokenizer_of(name);
    uint64_t hash = 0xcbf29ce484222325ull;
    const auto scratch = encoder->encoder();
    std::vector<int32_t> ids;
    for (const std::string& text : texts) scratch->append(text, ids);
    for (const int32_t id : ids)
      for (int byte = 0; byte < 4; ++byte) hash = (hash ^ (uint32_t(id) >> (8 * byte) & 0xff)) * 0x100000001b3ull;
    char hex[17];
    std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(hash));
    EXPECT_EQ(hex, digest.get<std::string>()) << name;
  }
}

nlohmann::json form_cases() { return nlohmann::json::parse(read_bytes(kFixtures + "forms.json")); }

// gpt2.json, with members replaced by those of a case.
std::string write_form(const TempDir& dir, const nlohmann::json& change) {
  auto file = nlohmann::json::parse(read_bytes(kFixtures + "gpt2.json"));
  file.update(change);
  write_bytes(dir / "tokenizer.json", file.dump());
  return dir / "tokenizer.json";
}

std::string digest_of(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char byte : bytes) hash = (hash ^ uint8_t(byte)) * 0x100000001b3ull;
  char hex[17];
  std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(hash));
  return std::string(hex, 8);
}

TEST(Oracles, NormalizedAndStrippedTextsMatchReferenceIds) {
  const TempDir dir;
  const nlohmann::json all = form_cases();
  const auto texts = all["texts"].get<std::vector<std::string>>();
  ASSERT_GE(all["ids"].size(), 20u);
  for (const auto& [name, digests] : all["ids"].items()) {
    const bool special = name.ends_with(" special");
    const auto& change = all["changes"][special ? name.substr(0, name.size() - 8) : name];
    std::unique_ptr<Tokenizer> tokenizer;
    try {
      tokenizer = make_tokenizer({.source = write_form(dir, change), .allow_special = special});
    } catch (const Error& e) {
      expect_parts(e.what(), {"PCRE2"});
      continue;  // a program without it
    }
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto ids = tokenizer->encode(texts[i]);
      ASSERT_EQ(digest_of({reinterpret_cast<const char*>(ids.data()), 4 * ids.size()}), digests[i])
          << name << ", text " << i << ": \"" << texts[i] << "\", ids " << nlohmann::json(ids);
    }
  }
}

TEST(Oracles, NormalFormsOfEveryCharacterMatchReference) {
  const nlohmann::json all = form_cases();
  const std::map<std::string, Form> forms = {
      {"NFC", Form::nfc}, {"NFD", Form::nfd}, {"NFKC", Form::nfkc}, {"NFKD", Form::nfkd}};
  ASSERT_EQ(all["sweep"].size(), forms.size());
  for (const auto& [name, digests] : all["sweep"].items()) {
    const NormalForm form(forms.at(name));
    for (size_t block = 0; block < digests.size(); ++block) {
      std::string text;
      for (auto code = uint32_t(4096 * block); code < 4096 * (block + 1); ++code) {
        if (code >= 0xd800 && code < 0xe000) continue;
        std::string c;
        append_utf8(c, code);
        text += "a" + c + "\u0301" + c + "\u3099" + c + "1";
      }
      EXPECT_EQ(digest_of(form.of(text)), digests[block]) << name << ", characters from " << 4096 * block;
    }
  }
}

TEST(Oracles, CutsOfNormalizedTextsChangeNoId) {
  const TempDir dir;
  const nlohmann::json all = form_cases();
  for (const char* name : {"NFKC", "NFD", "two forms", "phi3", "phi4", "left"})
    for (const bool special : {false, true}) {
      const auto tokenizer =
          make_tokenizer({.source = write_form(dir, all["changes"][name]), .allow_special = special});
      int cuts = 0;
      for (size_t i = 0; i < all["texts"].size(); i += 4) {
        const auto part = all["texts"][i].get<std::string>();
        const std::string text = part + "é word\n" + part + "\u2474\n<tool_call> x" + part + " y";
        const auto whole = tokenizer->encode(text);
        for (size_t cut = tokenizer->last_cut(text, 0, text.size()); cut > 0;
             cut = tokenizer->last_cut(text, 0, cut - 1), ++cuts) {
          auto ids = tokenizer->encode(std::string_view(text).substr(0, cut));
          for (const int32_t id : tokenizer->encode(std::string_view(text).substr(cut))) ids.push_back(id);
          ASSERT_EQ(ids, whole) << name << ": \"" << text << "\", cut at " << cut;
        }
      }
      EXPECT_GT(cuts, 50) << name;
    }
}

// The two files of GPT-2 say the same as its tokenizer.json.
TEST(Oracles, Gpt2FilesMatchTheirTokenizerJson) {
  const auto pair = load_tokenizer(kFixtures + "gpt2"), json = load_tokenizer(kFixtures + "gpt2.json");
  EXPECT_EQ(pair->name(), "gpt2");
  EXPECT_EQ(pair->vocab_size(), json->vocab_size() - 1);  // without <tool_call>
  EXPECT_EQ(pair->eod_id(), json->eod_id());
  for (const std::string& text : cases()["texts"].get<std::vector<std::string>>())
    if (text.find("<tool_call>") == text.npos) {
      EXPECT_EQ(pair->encode(text), json->encode(text)) << text;
    }
}

}  // namespace
}  // namespace athanor
