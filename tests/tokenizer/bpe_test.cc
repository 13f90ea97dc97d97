// Merging: the fast ways give what the definition says, for well-ordered and for hostile rules, in linear time.
#include "tokenizer/bpe.h"

#include <algorithm>
#include <ctime>

#include "tokenizer_testing.h"

namespace athanor {
namespace {

using namespace testing;

// 256 bytes, then random unions of tokens; ranks in order or shuffled.
std::pair<std::vector<std::string>, std::vector<Merge>> random_rules(uint64_t seed, int letters, bool ordered) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, char(byte));
  std::vector<Merge> merges;
  auto pick = [&, n = uint64_t{0}]() mutable {
    const uint32_t r = random_bits(seed, 1, n++);
    return r % 3 && tokens.size() > 256 ? int32_t(256 + (r >> 8) % (tokens.size() - 256))
                                        : int32_t('a' + (r >> 8) % uint32_t(letters));
  };
  for (uint32_t i = 0; i < 60; ++i) {
    const int32_t first = pick(), second = pick();
    const std::string both = tokens[size_t(first)] + tokens[size_t(second)];
    if (both.size() > 40 || std::find(tokens.begin(), tokens.end(), both) != tokens.end()) continue;
    tokens.push_back(both);
    merges.push_back({first, second, int32_t(tokens.size()) - 1, ordered ? i : random_bits(seed, 2, i) % 100});
  }
  return {tokens, merges};
}

// The definition: repeatedly merge the mergeable pair with the lowest rank, the leftmost of equal ones.
std::vector<int32_t> by_definition(const Bpe& bpe, std::string_view piece) {
  std::vector<int32_t> ids;
  const auto rule_at = [&](size_t i) {
    return bpe.rule(ids[i], ids[i + 1], cat(bpe.bytes_of(ids[i]), bpe.bytes_of(ids[i + 1])));
  };
  for (const char c : piece) ids.push_back(bpe.token_of_byte(uint8_t(c)));
  for (;;) {
    size_t best = ids.size();
    uint32_t rank = Bpe::kNever;
    for (size_t i = 0; i + 1 < ids.size(); ++i)
      if (const auto rule = rule_at(i); rule.rank < rank) rank = rule.rank, best = i;
    if (best == ids.size()) return ids;
    ids[best] = rule_at(best).merged;
    ids.erase(ids.begin() + ptrdiff_t(best) + 1);
  }
}

std::string letters(uint64_t seed, int count, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) text += char('a' + random_bits(seed, 3, i) % uint32_t(count));
  return text;
}

TEST(Bpe, MatchesItsDefinition) {
  for (uint64_t seed = 0; seed < 60; ++seed)
    for (const bool ordered : {true, false}) {
      const int alphabet = 1 + int(seed % 3);
      auto [tokens, merges] = random_rules(seed, alphabet, ordered);
      const Bpe bpe(tokens, merges, false);
      BpeEncoder encoder(bpe);
      for (const size_t size : {1, 2, 3, 7, 24, 25, 47, 48, 49, 50, 200, 700}) {
        const std::string piece = letters(seed + size, alphabet, size);
        for (int again = 0; again < 2; ++again) {  // the second time out of the cache
          std::vector<int32_t> ids;
          encoder.append(piece, ids);
          EXPECT_EQ(ids, by_definition(bpe, piece)) << "seed " << seed << ", ordered " << ordered << ", " << piece;
        }
      }
    }
}

TEST(Bpe, RanksImplyAllMerges) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, char(byte));
  tokens.insert(tokens.end(), {"ab", "ba", "aba", ""});
  const auto merges = Bpe::merges_of_ranks(tokens);
  ASSERT_EQ(merges.size(), 4u);  // a+b, b+a, a+ba, ab+a
  for (const Bpe& bpe : {Bpe(tokens, merges, true), Bpe::by_ranks(tokens)}) {
    EXPECT_EQ(bpe.rule('a', 257, "aba").merged, 258);
    EXPECT_EQ(bpe.rule(256, 'a', "aba").rank, bpe.rule('a', 257, "aba").rank);
    EXPECT_EQ(bpe.rule('a', 'a', "aa").rank, Bpe::kNever);
    BpeEncoder encoder(bpe);
    std::vector<int32_t> ids;
    encoder.append("ababa", ids);
    EXPECT_EQ(ids, by_definition(bpe, "ababa"));
  }
}

// Looking tokens up and the table that ranks imply are two ways to the same ids; so are batches of any size.
TEST(Bpe, RanksAndMergesGiveTheSameIds) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const int alphabet = 1 + int(seed % 3);
    const auto tokens = random_rules(seed, alphabet, true).first;
    const Bpe table(tokens, Bpe::merges_of_ranks(tokens), true), ranks = Bpe::by_ranks(tokens);
    BpeEncoder one(table), many(ranks);
    std::vector<std::string> texts;
    for (size_t i = 0; i < 100; ++i) texts.push_back(letters(seed + i, alphabet, 1 + i * i % 97));
    const std::vector<std::string_view> pieces(texts.begin(), texts.end());
    for (int again = 0; again < 2; ++again) {
      std::vector<int32_t> expected, ids;
      for (const std::string_view piece : pieces) one.append(piece, expected);
      many.append(pieces, ids);
      EXPECT_EQ(ids, expected) << "seed " << seed;
    }
  }
}

TEST(Bpe, WholeTokensTakePrecedenceIfEnabled) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, char(byte));
  tokens.push_back("xyz");  // no merge makes it
  for (const bool whole : {true, false}) {
    const Bpe bpe(tokens, {}, whole);
    BpeEncoder encoder(bpe);
    std::vector<int32_t> ids;
    encoder.append("xyz", ids);
    EXPECT_EQ(ids, whole ? std::vector<int32_t>{256} : (std::vector<int32_t>{'x', 'y', 'z'}));
  }
}

TEST(Bpe, VocabularyWithoutAByteIsAnError) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 255; ++byte) tokens.emplace_back(1, char(byte));
  EXPECT_ERROR(Bpe(tokens, {}, false), "byte 255", "byte-level");
}

// Eight times the text takes about eight times as long; a quadratic algorithm would take 64 times.
TEST(Bpe, LongPiecesTakeLinearTime) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, char(byte));
  for (int power = 1; power < 7; ++power) tokens.emplace_back(size_t(1) << power, 'a');
  const Bpe bpe = Bpe::by_ranks(tokens);
  BpeEncoder encoder(bpe);
  const auto time_of = [&](size_t size) {
    double best = 1e9;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const std::clock_t begin = std::clock();  // processor time: others' work does not count
      std::vector<int32_t> ids;
      encoder.append(std::string(size, 'a'), ids);
      best = std::min(best, double(std::clock() - begin));
      EXPECT_EQ(ids.size(), size / 64);
    }
    return best;
  };
  EXPECT_LT(time_of(1 << 19) / time_of(1 << 16), 32);
}

}  // namespace
}  // namespace athanor
