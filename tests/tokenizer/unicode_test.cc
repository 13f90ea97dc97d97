// UTF-8 with its invalid bytes, and normalization form C.
#include "tokenizer/unicode.h"

#include "tokenizer/normal_form.h"
#include "tokenizer/patterns.h"
#include "tokenizer_testing.h"

namespace athanor {
namespace {

using namespace testing;

TEST(Unicode, Utf8OfEveryCharacterRoundTrips) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string text;
    append_utf8(text, code);
    const Char c = char_at(text, 0);
    ASSERT_EQ(c.code, code);
    ASSERT_EQ(c.bytes, text.size());
    ASSERT_EQ(char_before(text, text.size()), 0u);
    for (size_t cut = 1; cut < text.size(); ++cut)
      ASSERT_EQ(char_at(text.substr(0, cut), 0).code, kInvalidByte | uint8_t(text[0])) << code;
  }
}

TEST(Unicode, InvalidUtf8DecodesToSingleBytes) {
  for (const std::string text : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                                 "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3", "\xe4\xb8", "\xf0\x9f\x98"}) {
    EXPECT_EQ(char_at(text, 0).bytes, 1) << text;
    EXPECT_EQ(char_at(text, 0).code, kInvalidByte | uint8_t(text[0]));
    EXPECT_EQ(CharTable().at(text, 0).kind, 0);
  }
}

TEST(Unicode, ClassesMatchUnicode16) {
  const CharTable table;
  EXPECT_EQ(table.of('A'), kUpper);
  EXPECT_EQ(table.of(0x1c5), kUpper);  // Lt
  EXPECT_EQ(table.of('z'), kLower);
  EXPECT_EQ(table.of(0x2b0), kCaseless);
  EXPECT_EQ(table.of(0x301), kMark);
  EXPECT_EQ(table.of(0xbd), kNumber);
  EXPECT_EQ(table.of('\n'), kSpace | kNewline);
  EXPECT_EQ(table.of(0x3000), kSpace);
  EXPECT_EQ(table.of(0x85), kSpace);
  EXPECT_EQ(table.of(0xfeff), 0);
  EXPECT_EQ(table.of(0x1c89), kUpper);  // new in 16
  size_t letters = 0, numbers = 0, marks = 0;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    letters += (table.of(code) & kLetter) != 0;
    numbers += table.of(code) == kNumber;
    marks += table.of(code) == kMark;
  }
  EXPECT_EQ(letters, 141'028u);  // as tiktoken 0.14 and tokenizers 0.23 count them
  EXPECT_EQ(numbers, 1'911u);
  EXPECT_EQ(marks, 2'501u);
}

TEST(NormalForm, ComposesAndReordersAsInUnicode) {
  const NormalForm nfc(Form::nfc);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", ""},
      {"plain", "plain"},
      {"e\u0301", "é"},
      {"\u00e9", "é"},
      {"\u212b", "\u00c5"},               // the angstrom sign is the letter
      {"a\u0315\u0300", "\u00e0\u0315"},  // ordered, then composed
      {"a\u0334\u0301", "\u00e1\u0334"},  // 0334 does not block
      {"a\u0301\u0301", "\u00e1\u0301"},  // the second is blocked by the first
      {"\u1100\u1161\u11a8", "\uac01"},   // Hangul
      {"\uac00\u11a8", "\uac01"},
      {"\u0915\u093c", "\u0915\u093c"},  // excluded from composition
      {"\u0958", "\u0915\u093c"},
      {"\u0344", "\u0308\u0301"},
      {"\u0301", "\u0301"},            // nothing before it
      {"a\xff\u0301", "a\xff\u0301"},  // an invalid byte is not composed with
      {"\xe4\xb8", "\xe4\xb8"},
      {"\U000105d2\u0307", "\U000105d2\u0307"},  // composes since Unicode 16 only
  };
  for (const auto& [text, normal] : cases) {
    EXPECT_EQ(nfc.of(text), normal);
    EXPECT_EQ(nfc.of("1" + text + "2"), "1" + normal + "2");
    EXPECT_EQ(nfc.of(normal), normal) << "not idempotent";
  }
}

// Random texts contain invalid bytes, too.
TEST(NormalForm, IsIdempotentOnRandomText) {
  for (const Form form : {Form::nfc, Form::nfd, Form::nfkc, Form::nfkd}) {
    const NormalForm normal(form);
    for (uint64_t seed = 0; seed < 300; ++seed) {
      const std::string once = normal.of(random_text(seed, 40));
      EXPECT_EQ(normal.of(once), once) << "seed " << seed;
    }
  }
}

// A run of letters ends at its first other character, whatever that is and wherever the text ends.
TEST(Patterns, WordsEndWithTheirLetters) {
  const CharTable table;
  const std::string alphabet = "abcdefghijklmnopqrstuvwxyz";
  for (const char* name : {"gpt2", "cl100k", "llama3", "qwen2", "o200k"})
    for (int byte = 0; byte < 256; ++byte)
      for (size_t size = 1; size < alphabet.size(); size += 3)
        for (const char* rest : {"", "a", "xyz xyz xyz"}) {
          const std::string text = cat(' ', alphabet.substr(0, size), char(byte), rest);
          size_t end = size + 1;
          while (end < text.size() && table.at(text, end).kind & kLower) end += table.at(text, end).bytes;
          if (byte == '\'' || (end < text.size() && table.at(text, end).kind & (kLetter | kMark))) continue;
          EXPECT_EQ(find_pattern(name)->next(table, text, 0), end) << name << " " << byte << " " << size << rest;
        }
}

// Splitting at last_safe_cut() changes no piece.
TEST(Patterns, SafeCutsAreSafe) {
  const CharTable table;
  for (const char* name : {"gpt2", "cl100k", "llama3", "qwen2", "o200k"}) {
    const NextPiece next = find_pattern(name)->next;
    const auto pieces = [&](std::string_view text) {
      std::vector<std::string> all;
      for (size_t at = 0; at < text.size();) {
        const size_t end = next(table, text, at);
        EXPECT_GT(end, at);
        EXPECT_LE(end, text.size());
        all.emplace_back(text.substr(at, end - at));
        at = end;
      }
      return all;
    };
    for (uint64_t seed = 0; seed < 300; ++seed) {
      const std::string text = random_text(seed, 60);
      const auto whole = pieces(text);
      for (size_t to = text.size(); to > 0;) {
        const size_t cut = last_safe_cut(table, text, 0, to);
        if (cut == 0) break;
        auto parts = pieces(text.substr(0, cut));
        for (auto& piece : pieces(text.substr(cut))) parts.push_back(piece);
        EXPECT_EQ(parts, whole) << name << ", seed " << seed << ", cut at " << cut;
        to = cut - 1;
      }
    }
  }
}

}  // namespace
}  // namespace athanor
