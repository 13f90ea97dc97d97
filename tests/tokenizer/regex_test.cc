// Split patterns that are not built in split a text like the program for which they were written, or are refused with
// the syntax that cannot be translated. fixtures/make_patterns.py recorded the splits.
#include "tokenizer/regex.h"

#include <nlohmann/json.hpp>

#include "tokenizer/splitter.h"
#include "tokenizer_testing.h"

namespace athanor {
namespace {

using namespace testing;

// Null in a program without PCRE2.
std::shared_ptr<const Regex> compiled(const std::string& pattern, RegexDialect dialect) {
  try {
    return Regex::compile(pattern, dialect);
  } catch (const Error& e) {
    if (std::string(e.what()).find("libpcre2-dev") == std::string::npos) throw;
    return nullptr;
  }
}

std::vector<std::string> pieces_of(const Regex& regex, const std::string& text) {
  std::vector<size_t> ends;
  regex.split(text, ends);
  std::vector<std::string> out;
  size_t begin = 0;
  for (const size_t end : ends) {
    out.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return out;
}

TEST(SplitPattern, SplitsLikeTheTokenizersLibrary) {
  if (!compiled("a", RegexDialect::oniguruma)) GTEST_SKIP() << "built without PCRE2";
  const nlohmann::json all = nlohmann::json::parse(read_bytes(kFixtures + "patterns.json"));
  const auto texts = all["texts"].get<std::vector<std::string>>();
  for (const nlohmann::json& one : all["cases"]) {
    const auto pattern = one["pattern"].get<std::string>();
    const auto regex = compiled(pattern, RegexDialect::oniguruma);
    for (size_t i = 0; i < texts.size(); ++i) {
      std::vector<size_t> ends;
      regex->split(texts[i], ends);
      EXPECT_EQ(ends, one["ends"][i].get<std::vector<size_t>>()) << pattern << " of \"" << texts[i] << "\"";
    }
  }
}

TEST(SplitPattern, UntranslatableSyntaxIsRefusedByName) {
  const auto refused = [](const char* pattern, RegexDialect dialect) {
    return error_of([&] { to_pcre2(pattern, dialect); });
  };
  const std::vector<std::pair<const char*, const char*>> onig = {{"(a)\\1", "\\1"},
                                                                 {"\\X", "\\X"},
                                                                 {"\\Ga", "\\G"},
                                                                 {"a\\Kb", "\\K"},
                                                                 {"(?~ab)", "option"},
                                                                 {"(?x) a", "\"x\""},
                                                                 {"(?s:a)", "\"s\""},
                                                                 {"a(?i)b", "middle"},
                                                                 {"(?i:ss)", "\"ss\""},
                                                                 {"(?i)(?:s)(?:s)", "\"ss\""},
                                                                 {"(?i)(?:f)i", "\"fi\""},
                                                                 {"(?i)f(?:(?:f))", "\"ff\""},
                                                                 {"(?i:é)", "ASCII"},
                                                                 {"(?i)\\w", "class"},
                                                                 {"(?i)[^a]", "[^a]"},
                                                                 {"(?i)[[:upper:]]+", "[[:upper:]]"},
                                                                 {"(?i:[a[:^lower:]])", "[a[:^lower:]]"},
                                                                 {"\\xc3\\xa9", "\\x"},
                                                                 {"[[:punct:]]", "punct"},
                                                                 {"\\p{L&}", "\\p{L&}"},
                                                                 {"\\p{In_Greek}", "\\p{In_Greek}"},
                                                                 {"a{3,1}", "before it begins"},
                                                                 {"a{5000}", "1000"},
                                                                 {"*a", "quantifier"},
                                                                 {"[a-\\d]", "class of characters"},
                                                                 {"[a--b]", "a range"},
                                                                 {"(a", "without"},
                                                                 {"a)", "without"},
                                                                 {"[a", "without"},
                                                                 {"\\q", "\\q"},
                                                                 {"[b-a]", "before it begins"}};
  for (const auto& [pattern, what] : onig)
    expect_parts(refused(pattern, RegexDialect::oniguruma), {"split pattern ", pattern, what});
  for (const auto& [pattern, what] :
       {std::pair{"a{,3}", "{,3}"}, {"a{", "\"{\""}, {"\\R", "\\R"}, {"[a~~b]", "\"~~\""}})
    expect_parts(refused(pattern, RegexDialect::rust), {"split pattern ", pattern, what});
  expect_parts(refused(std::string(5000, '(').c_str(), RegexDialect::oniguruma), {"nesting"});
}

TEST(SplitPattern, RankFilePatternsSplitLikeTiktoken) {
  if (!compiled("a", RegexDialect::rust)) GTEST_SKIP() << "built without PCRE2";
  using Pieces = std::vector<std::string>;
  const auto cut = [](const char* pattern, const std::string& text) {
    return pieces_of(*compiled(pattern, RegexDialect::rust), text);
  };
  EXPECT_EQ(cut("^a", "a\na"), (Pieces{"a", "\na"}));
  EXPECT_EQ(cut("(?m)^a", "a\na"), (Pieces{"a", "\n", "a"}));
  EXPECT_EQ(cut("\\s+$", "a\n b \n"), (Pieces{"a\n b", " \n"}));
  EXPECT_EQ(cut("\\p{N}{1,3}+", "1234"), (Pieces{"123", "4"}));
  EXPECT_EQ(cut("(?s:a.)b", "a\nb"), (Pieces{"a\nb"}));
  EXPECT_EQ(cut("\\w+", "a\u200db c"), (Pieces{"a\u200db", " ", "c"}));
  EXPECT_EQ(cut("\\pL+", "ab1"), (Pieces{"ab", "1"}));
}

// In a tokenizer.json a pattern is always a regular expression, never the name of a built-in one; and a + after {1,3}
// is not a possessive quantifier.
TEST(SplitPattern, BuiltInPatternsAreRecognizedByTheirExpression) {
  if (!compiled("a", RegexDialect::oniguruma)) GTEST_SKIP() << "built without PCRE2";
  Splitter splitter;
  splitter.add_oniguruma("gpt2");
  splitter.add_oniguruma(find_pattern("llama3")->regex);
  splitter.add_oniguruma(find_pattern("cl100k")->regex);
  EXPECT_EQ(splitter.patterns()[1], "llama3");
  EXPECT_NE(splitter.patterns()[2], "cl100k");
  const CharTable table;
  std::vector<std::string> got;
  splitter.for_each(table, "xgpt2x", [&](std::string_view piece) { got.emplace_back(piece); });
  EXPECT_EQ(got, (std::vector<std::string>{"x", "gpt", "2", "x"}));
  EXPECT_EQ(splitter.caveat(), "");
}

// Letters and marks of Unicode 15 and 16 belong to one subcategory each, whatever Unicode PCRE2 has.
TEST(SplitPattern, NewerCharactersHaveTheirSubcategory) {
  if (!compiled("a", RegexDialect::oniguruma)) GTEST_SKIP() << "built without PCRE2";
  const std::vector<std::pair<std::string, std::string>> newer = {
      {"Lo", "\U000105c0"}, {"Lm", "\U0001e030"}, {"Mn", "\U0001e08f"}, {"Mc", "\u0cf3"}};
  for (size_t i = 0; i < newer.size(); ++i) {
    const auto regex = compiled(cat("\\p{", newer[i].first, "}"), RegexDialect::oniguruma);
    for (size_t k = 0; k < newer.size(); ++k) {
      const std::string& character = newer[k].second;
      const std::vector<std::string> cut = {"a", character, "b"}, whole = {"a" + character + "b"};
      EXPECT_EQ(pieces_of(*regex, whole[0]), i == k ? cut : whole) << newer[i].first << " of one of " << newer[k].first;
    }
  }
}

TEST(SplitPattern, CharactersMissingInTheTablesAreCounted) {
  const auto regex = compiled("\\w+", RegexDialect::oniguruma);
  if (!regex) GTEST_SKIP() << "built without PCRE2";
  Splitter splitter;
  splitter.add("\\w+");
  const CharTable table;
  const auto read = [&](std::string_view text) { splitter.for_each(table, text, [](std::string_view) {}); };
  read("plain é 漢");
  EXPECT_EQ(splitter.caveat(), "");
  if (std::stod(regex->unicode_version()) >= 15) GTEST_SKIP() << "Unicode " << regex->unicode_version();
  read("\U000105d2 \U000105d2");  // letters of Unicode 16 are known by our own tables
  EXPECT_EQ(splitter.caveat(), "");
  read("\U0001f6dc a \U0001e08f \U0001f6dc");  // a symbol of Unicode 15
  expect_parts(splitter.caveat(), {"\\w+", "2 characters", regex->unicode_version()});
}

}  // namespace
}  // namespace athanor
