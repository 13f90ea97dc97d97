// The table of tokens finds what a search through all of them finds.
#include "tokenizer/token_table.h"

#include <algorithm>

#include "base/rng.h"
#include "tokenizer_testing.h"

namespace athanor {
namespace {

// Few letters, and sizes on both sides of a slot's capacity, so that many tokens share a prefix or suffix and some are
// equal.
std::vector<std::string> random_tokens(uint64_t seed, size_t count) {
  std::vector<std::string> tokens(count);
  for (size_t id = 0; id < count; ++id)
    for (uint64_t i = 0, size = random_bits(seed, id, 0) % 20; i < size; ++i)
      tokens[id] += "a\0"[random_bits(seed, id, i + 1) % 2];
  return tokens;
}

int32_t first_of(const std::vector<std::string>& tokens, std::string_view bytes) {
  const auto found = std::find(tokens.begin(), tokens.end(), bytes);
  return found == tokens.end() || bytes.empty() ? -1 : int32_t(found - tokens.begin());
}

TEST(TokenTable, FindsTheFirstOfDuplicateTokens) {
  const auto tokens = random_tokens(1, 700);
  const TokenTable table(tokens);
  ASSERT_EQ(table.size(), tokens.size());
  EXPECT_EQ(table.longest(), 19u);
  EXPECT_EQ(table.count(), tokens.size() - size_t(std::count(tokens.begin(), tokens.end(), "")));
  for (size_t id = 0; id < tokens.size(); ++id) {
    EXPECT_EQ(table[id], tokens[id]);
    EXPECT_EQ(table.find(tokens[id]), first_of(tokens, tokens[id])) << id;
  }
  for (const std::string& other : random_tokens(2, 700)) EXPECT_EQ(table.find(other), first_of(tokens, other));
  EXPECT_EQ(table.find(std::string(5000, 'a')), -1);
  EXPECT_EQ(TokenTable().find("a"), -1);
}

// Growing loses no token, for any order of ids.
TEST(TokenTable, GrowsWithoutLoss) {
  TokenTable table;
  const auto text_of = [](size_t id) { return cat("token ", id * 7919); };
  for (size_t id = 1000; id-- > 0;) EXPECT_TRUE(table.put(id, text_of(id)));
  for (size_t id = 0; id < 1000; ++id) EXPECT_EQ(table.find(text_of(id)), int32_t(id));
  EXPECT_FALSE(table.put(1000, text_of(3)));
  EXPECT_EQ(table.find(text_of(3)), 3);
  EXPECT_TRUE(table.put(2000, ""));  // an id without a token
  EXPECT_EQ(table.size(), 2001u);
  EXPECT_EQ(table.count(), 1001u);
  EXPECT_THROW(table.put(5, "other"), std::exception);
}

}  // namespace
}  // namespace athanor
