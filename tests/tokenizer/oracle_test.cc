// Ids are those of `tokenizers` and `tiktoken`, for every format and split pattern: fixtures/make.py recorded them.
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tokenizer/load.h"
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

TEST(Oracles, ShortTextsHaveTheirIds) {
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

TEST(Oracles, EveryCharacterHasItsClassEverywhere) {
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

// The two files of GPT-2 say the same as its tokenizer.json.
TEST(Oracles, Gpt2FilesAgreeWithTheirTokenizerJson) {
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
