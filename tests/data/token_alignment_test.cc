// A window's text in another tokenizer: positions that end at the same byte are paired, for any tokens.
#include "data/token_alignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tokenizer/load.h"

namespace athanor {
namespace {

const std::string kTokenizerFixtures = "tests/tokenizer/fixtures/";

std::unique_ptr<Tokenizer> bytes() { return make_tokenizer({}); }
std::unique_ptr<Tokenizer> gpt2() { return load_tokenizer(kTokenizerFixtures + "gpt2.json"); }

// Every pair has seen the same text, up to the end of its token.
void expect_same_prefixes(const Tokenizer& from, const Tokenizer& to, const std::vector<int32_t>& tokens,
                          const AlignedTokens& aligned) {
  ASSERT_EQ(aligned.positions.size(), tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t at = aligned.positions[i];
    if (at < 0) continue;
    const auto text = [](const Tokenizer& t, std::span<const int32_t> ids) {
      std::string all;
      for (const int32_t id : ids) all += id == t.eod_id() ? "\x1e" : t.decode({&id, 1}, TextPlace::inside);
      return all;
    };
    EXPECT_EQ(text(to, std::span(aligned.tokens).first(size_t(at) + 1)), text(from, std::span(tokens).first(i + 1)));
  }
}

TEST(TokenAlignment, PositionsThatEndWithTheSameByteArePaired) {
  const auto from = bytes(), to = gpt2();
  const std::string text = "The quick brown fox, 12345 na\xc3\xafve  caf\xc3\xa9s\n";
  const std::vector<int32_t> tokens = from->encode(text);
  const AlignedTokens aligned = TokenAligner(*from, *to, 1000).align(tokens);
  expect_same_prefixes(*from, *to, tokens, aligned);
  EXPECT_EQ(aligned.tokens, to->encode(text));
  std::vector<int64_t> paired;
  for (const int64_t at : aligned.positions)
    if (at >= 0) paired.push_back(at);
  std::vector<int64_t> all(aligned.tokens.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(paired, all) << "a byte ends where any token does";

  const AlignedTokens back = TokenAligner(*to, *from, 1000).align(aligned.tokens);
  expect_same_prefixes(*to, *from, aligned.tokens, back);
  EXPECT_EQ(back.tokens, tokens);
  EXPECT_EQ(std::ranges::count(back.positions, -1), 0);
}

TEST(TokenAlignment, DocumentsEndInBothAndBeginWithTheTeacherBos) {
  const auto from = bytes(), to = gpt2();
  std::vector<int32_t> tokens = from->encode("one two");
  tokens.push_back(from->eod_id());
  for (const int32_t id : from->encode("three")) tokens.push_back(id);
  const AlignedTokens plain = TokenAligner(*from, *to, 1000).align(tokens);
  expect_same_prefixes(*from, *to, tokens, plain);
  ASSERT_EQ(plain.ends.size(), 1U);
  EXPECT_EQ(plain.tokens[size_t(plain.ends[0]) - 1], to->eod_id());
  EXPECT_EQ(plain.positions[7], plain.ends[0] - 1);
  const int32_t bos = 5;
  const AlignedTokens begun = TokenAligner(*from, *to, 1000, bos).align(tokens);
  EXPECT_EQ(begun.tokens.size(), plain.tokens.size() + 2);
  EXPECT_EQ(begun.tokens[0], bos);
  EXPECT_EQ(begun.tokens[size_t(begun.ends[0])], bos);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t at = plain.positions[i];
    EXPECT_EQ(begun.positions[i], at < 0 ? -1 : at + (i < 8 ? 1 : 2)) << i;
  }
}

TEST(TokenAlignment, PositionsAfterTheLimitAreNotPaired) {
  const auto from = bytes(), to = gpt2();
  const std::vector<int32_t> tokens = from->encode("one two three four five six seven");
  const AlignedTokens whole = TokenAligner(*from, *to, 1000).align(tokens),
                      cut = TokenAligner(*from, *to, 3).align(tokens);
  EXPECT_EQ(cut.tokens.size(), 3U);
  for (size_t i = 0; i < tokens.size(); ++i)
    EXPECT_EQ(cut.positions[i], whole.positions[i] < 3 ? whole.positions[i] : -1) << i;
}

// A teacher tokenizer that changes the text is used up to the first change, and then from the next document.
TEST(TokenAlignment, PositionsAfterATextChangeAreNotPaired) {
  const auto from = bytes(), to = load_tokenizer(kTokenizerFixtures + "sentencepiece/rules.model");
  const std::string before = "plain ", text = before + " words";  // this one makes one space of two
  std::vector<int32_t> tokens = from->encode(text);
  tokens.push_back(from->eod_id());
  for (const int32_t id : from->encode("more plain words")) tokens.push_back(id);
  const AlignedTokens aligned = TokenAligner(*from, *to, 1000).align(tokens);
  const auto paired = [&](size_t begin, size_t end) {
    return std::count_if(aligned.positions.begin() + int64_t(begin), aligned.positions.begin() + int64_t(end),
                         [](int64_t at) { return at >= 0; });
  };
  EXPECT_GT(paired(0, before.size()), 0);
  EXPECT_EQ(paired(before.size(), text.size()), 0);
  EXPECT_GT(paired(text.size() + 1, tokens.size()), 0);
}

}  // namespace
}  // namespace athanor
