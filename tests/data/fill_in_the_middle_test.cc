// Laws of fill-in-the-middle: documents keep their boundaries and lengths, the parts reassemble to the text, and cuts
// are uniform and depend only on the window's position.
#include "data/fill_in_the_middle.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "data/loader.h"
#include "data_testing.h"
#include "tokenizer/load.h"
#include "tokenizer/unicode.h"

namespace athanor {
namespace {

constexpr int32_t kPrefix = 1000, kSuffix = 1001, kMiddle = 1002, kEod = 999;

FillInTheMiddle options(double rate, double spm_rate = 0.5) {
  return {.rate = rate, .spm_rate = spm_rate, .prefix = kPrefix, .suffix = kSuffix, .middle = kMiddle, .eod_id = kEod};
}

// Documents of these lengths, ends included; the last one has no end. Tokens are 0, 1, 2, ... in order.
Window window_of(const std::vector<int64_t>& lengths) {
  Window w;
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) w.tokens.push_back(int32_t(w.tokens.size()));
    w.tokens.back() = kEod;
    w.ends.push_back(int64_t(w.tokens.size()));
  }
  w.ends.pop_back();
  w.tokens.back() = int32_t(w.tokens.size()) - 1;
  w.mask.assign(w.tokens.size(), 1);
  return w;
}

using Text = std::vector<int32_t>;

struct Parts {
  Text prefix, middle, suffix;
};

// Reads a reordered text as a model's user would.
Parts parts_of(const Text& text) {
  const auto suffix = std::ranges::find(text, kSuffix), middle = std::ranges::find(text, kMiddle);
  EXPECT_EQ(text.front(), kPrefix);
  EXPECT_TRUE(suffix < middle && middle != text.end());
  return {.prefix = {text.begin() + 1, suffix}, .middle = {middle + 1, text.end()}, .suffix = {suffix + 1, middle}};
}

Text joined(const Text& a, const Text& b, const Text& c) {
  Text all = a;
  all.insert(all.end(), b.begin(), b.end());
  all.insert(all.end(), c.begin(), c.end());
  return all;
}

Text counting_text(int64_t count) {
  Text text(static_cast<size_t>(count));
  std::iota(text.begin(), text.end(), 0);
  return text;
}

TEST(FillInTheMiddle, PartsReassembleToTheTextInBothOrders) {
  for (const double spm_rate : {0.0, 1.0})
    for (int64_t n = 0; n < 200; ++n) {
      Window w = window_of({20});
      fill_in_the_middle(w, options(1, spm_rate), {.seed = 3, .window = n});
      ASSERT_EQ(w.tokens.size(), 20u);
      const Parts p = parts_of(w.tokens);
      ASSERT_TRUE(spm_rate == 0 || p.prefix.empty());  // in SPM order the prefix precedes the middle
      ASSERT_EQ(joined(p.prefix, p.middle, p.suffix), counting_text(17)) << n;
    }
}

TEST(FillInTheMiddle, DocumentBoundariesStayInPlace) {
  const Window before = window_of({9, 1, 3, 30, 4, 5, 2, 12});
  int changed = 0;
  for (int64_t n = 0; n < 100; ++n) {
    Window w = before;
    fill_in_the_middle(w, options(0.5), {.window = n});
    ASSERT_EQ(w.ends, before.ends);
    ASSERT_EQ(w.mask, before.mask);
    int64_t begin = 0;
    std::vector<int64_t> ends = before.ends;
    ends.push_back(int64_t(before.tokens.size()));
    for (size_t i = 0; i < ends.size(); ++i) {
      const Text was(before.tokens.begin() + begin, before.tokens.begin() + ends[i]),
          is(w.tokens.begin() + begin, w.tokens.begin() + ends[i]);
      begin = ends[i];
      ASSERT_EQ(was.back() == kEod, is.back() == kEod) << "document " << i;
      if (is == was) continue;
      ++changed;
      const int64_t text = int64_t(was.size()) - (was.back() == kEod);
      ASSERT_GE(text, kLeastText);
      for (const int32_t token : is)  // its own tokens and sentinels, no other document's
        ASSERT_TRUE(token >= kEod || std::ranges::count(was, token) == 1) << "document " << i;
      ASSERT_EQ(std::ranges::count(is, kMiddle), 1);
    }
  }
  EXPECT_NEAR(changed, 0.5 * 100 * 4, 5 * std::sqrt(100 * 4 * 0.25));  // lengths 9, 30, 5 and 12 have the text for it
}

// Masked positions are not part of the text: BOS tokens in front, and padding at the end of a packed row.
TEST(FillInTheMiddle, MaskedTokensAreNotMoved) {
  Window before = window_of({10, 6});
  for (const size_t place : {0, 10, 11, 12, 13, 14, 15}) before.mask[place] = 0;
  Window w = before;
  fill_in_the_middle(w, options(1), {});
  EXPECT_EQ(w.tokens.front(), before.tokens.front());
  EXPECT_EQ(w.tokens[1], kPrefix);
  EXPECT_TRUE(std::equal(w.tokens.begin() + 9, w.tokens.end(), before.tokens.begin() + 9));
}

// A function of (seed, source, epoch, window, document), each of which changes it.
TEST(FillInTheMiddle, CutsDependOnSeedSourceEpochWindowAndDocument) {
  std::map<Text, int> seen;
  const auto read = [&](const WindowKey& key) {
    Window w = window_of({500, 499});  // texts of equal length
    fill_in_the_middle(w, options(1, 0), key);
    return w.tokens;
  };
  for (const WindowKey& key : {WindowKey{}, WindowKey{.seed = 1}, WindowKey{.source = 1}, WindowKey{.epoch = 1},
                               WindowKey{.window = 1}, WindowKey{.seed = uint64_t{1} << 40}})
    ++seen[read(key)];
  EXPECT_EQ(seen.size(), 6u);
  EXPECT_EQ(read({.seed = 7, .source = 1, .epoch = 2, .window = 3}),
            read({.seed = 7, .source = 1, .epoch = 2, .window = 3}));
  const Text both = read({});
  const auto cut = [&](size_t from) {
    return std::find(both.begin() + int64_t(from), both.end(), kSuffix) - both.begin();
  };
  EXPECT_NE(cut(0), cut(500) - 500) << "documents of a window have the same cuts";
}

// All pairs of positions are as likely as for two independent draws (chi-square), and the rates are the configured
// ones.
TEST(FillInTheMiddle, CutsAreUniformAndRatesAreKept) {
  constexpr int kTrials = 40'000, kPlaces = 8;  // 7 tokens are left of 10
  std::map<std::pair<size_t, size_t>, int> count;
  int changed = 0, suffix_first = 0;
  for (int64_t n = 0; n < kTrials; ++n) {
    Window w = window_of({10});
    fill_in_the_middle(w, options(0.9, 0), {.seed = 11, .window = n});
    if (w.tokens.front() == kPrefix) {
      const Parts p = parts_of(w.tokens);
      ++count[{p.prefix.size(), p.prefix.size() + p.middle.size()}];
      ++changed;
    }
    w = window_of({10});
    fill_in_the_middle(w, options(1, 0.25), {.seed = 12, .window = n});
    suffix_first += w.tokens[1] == kSuffix;
  }
  EXPECT_NEAR(changed, 0.9 * kTrials, 5 * std::sqrt(kTrials * 0.09));
  double chi2 = 0;
  for (size_t a = 0; a < kPlaces; ++a)
    for (size_t b = a; b < kPlaces; ++b) {
      const double expected = double(changed) * (a == b ? 1 : 2) / (kPlaces * kPlaces);
      chi2 += std::pow(count[{a, b}] - expected, 2) / expected;
    }
  EXPECT_LT(chi2, 35 + 5 * std::sqrt(70.0));
  const double share = 0.25 + 0.75 * 15 / (kPlaces * kPlaces);  // an empty prefix looks the same in both orders
  EXPECT_NEAR(suffix_first, share * kTrials, 5 * std::sqrt(kTrials * share * (1 - share)));
}

struct Cutter {
  std::shared_ptr<const Tokenizer> tokenizer;
  FillInTheMiddle fim;

  explicit Cutter(const std::string& file, double spm_rate = 0)
      : tokenizer(make_tokenizer(
            {.source = "tests/tokenizer/fixtures/" + file, .eod = file.ends_with(".json") ? "<|endoftext|>" : "</s>"})),
        fim(options(1, spm_rate)) {
    fim.characters = std::make_shared<PartEncoder>(tokenizer);
  }
  std::string text_of(const Text& ids) const { return tokenizer->decode(ids, TextPlace::inside); }
  Text ids_of(const std::string& text) const { return tokenizer->encode(text, TextPlace::inside); }
};

Window whole_window(const Text& ids) {
  return {.tokens = ids, .mask = std::vector<uint8_t>(ids.size(), 1), .ends = {}};
}

// Each part has the tokens of its text tokenized separately, and the parts reassemble to the text except its end.
TEST(FillInTheMiddle, PartsCutBetweenCharactersAreTokenizedSeparately) {
  const std::string text =
      "It's a \u4e16\u754c of many tokenizers, tr\u00e4umt e\u0301 12345 times\n\nand \U0001f600 again.";
  for (const char* file : {"gpt2.json", "llama3.json", "sentencepiece/llama.model", "sentencepiece/gemma.model"})
    for (const double spm_rate : {0.0, 1.0}) {
      const Cutter cutter(file, spm_rate);
      const Text ids = cutter.tokenizer->encode(text);
      const std::string whole = cutter.text_of(ids);
      int inside_tokens = 0;
      for (int64_t n = 0; n < 300; ++n) {
        Window w = whole_window(ids);
        fill_in_the_middle(w, cutter.fim, {.seed = 9, .window = n});
        ASSERT_EQ(w.tokens.size(), ids.size());
        Parts p = parts_of(w.tokens);
        if (spm_rate == 1) {  // the prefix precedes the middle, as one text
          ASSERT_TRUE(p.prefix.empty());
          ASSERT_TRUE(whole.starts_with(cutter.text_of(p.middle)));
          continue;
        }
        const std::string prefix = cutter.text_of(p.prefix), middle = cutter.text_of(p.middle);
        ASSERT_TRUE(whole.starts_with(prefix + middle + cutter.text_of(p.suffix))) << file;
        for (size_t at = 0; at < prefix.size(); at += char_at(prefix, at).bytes)
          ASSERT_FALSE(char_at(prefix, at).code & kInvalidByte) << "a character is cut";
        ASSERT_EQ(p.prefix, cutter.ids_of(prefix));
        ASSERT_EQ(p.middle, cutter.ids_of(middle));
        const Text rest = cutter.ids_of(whole.substr(prefix.size() + middle.size()));
        ASSERT_TRUE(std::ranges::equal(p.suffix, Text(rest.begin(), rest.begin() + int64_t(p.suffix.size()))));
        inside_tokens += !std::equal(p.prefix.begin(), p.prefix.end(), ids.begin());
      }
      if (spm_rate == 0) {
        EXPECT_GT(inside_tokens, 30) << file;
      }
    }
}

// A token of two characters has a place within it, and all places of a text are equally likely.
TEST(FillInTheMiddle, CutsBetweenCharactersAreUniform) {
  constexpr int kTrials = 20'000;
  const Cutter cutter("gpt2.json");
  const Text ids = cutter.ids_of("the the thethe the and the end of a text that has many tokenizers in it");
  std::vector<double> count(20);  // of the first places: the last tokens are sometimes dropped
  ASSERT_GT(count.size(), cutter.ids_of("the the thethe the a").size());
  for (int64_t n = 0; n < kTrials; ++n) {
    Window w = whole_window(ids);
    fill_in_the_middle(w, cutter.fim, {.seed = 10, .window = n});
    const Parts p = parts_of(w.tokens);
    const size_t first = cutter.text_of(p.prefix).size(), second = first + cutter.text_of(p.middle).size();
    for (const size_t at : {first, second})
      if (at < count.size()) ++count[at];
  }
  const double expected = std::accumulate(count.begin(), count.end(), 0.0) / double(count.size());
  double chi2 = 0;
  for (const double seen : count) chi2 += std::pow(seen - expected, 2) / expected;
  EXPECT_LT(chi2, double(count.size()) + 6 * std::sqrt(2.0 * double(count.size())));
}

// A text is cut between tokens if parts cut between characters would need more tokens than fit, or if the tokenizer
// changes the text.
TEST(FillInTheMiddle, FallsBackToCutsBetweenTokens) {
  Cutter cutter("gpt2.json");
  const Text ids = cutter.ids_of(" tokenizer tokenizer tokenizer");
  int between_tokens = 0;
  for (int64_t n = 0; n < 200; ++n) {
    Window w = whole_window(ids), of_tokens = w;
    fill_in_the_middle(w, cutter.fim, {.window = n});
    ASSERT_EQ(w.tokens.size(), ids.size());
    FillInTheMiddle plain = cutter.fim;
    plain.characters = nullptr;
    fill_in_the_middle(of_tokens, plain, {.window = n});
    between_tokens += w.tokens == of_tokens.tokens;
  }
  EXPECT_GT(between_tokens, 0);
  EXPECT_LT(between_tokens, 200);
  const Cutter trims("sentencepiece/rules.model");  // removes spaces at the ends of a text
  const Text spaced = trims.tokenizer->encode("the of and many tokenizers of the");
  for (int64_t n = 0; n < 100; ++n) {
    Window w = whole_window(spaced);
    fill_in_the_middle(w, trims.fim, {.window = n});
    const Parts p = parts_of(w.tokens);
    ASSERT_TRUE(trims.text_of(spaced).starts_with(trims.text_of(joined(p.prefix, p.middle, p.suffix)))) << n;
  }
}

// Rows of a data set, as windows and packed, in any order of reading.
TEST(FillInTheMiddle, ReordersWindowsAndPackedRowsOfADataset) {
  testing::TempDir dir;
  std::vector<uint16_t> tokens;
  for (int d = 0; d < 60; ++d) {
    for (int i = 0; i < 5 + d % 7; ++i) tokens.push_back(uint16_t(tokens.size() % 900));
    tokens.push_back(kEod);
  }
  write_bytes(dir / "a.bin", testing::llmc(tokens));
  constexpr int64_t kLength = 40;
  for (const bool packed : {false, true}) {
    Dataset plain = Dataset::open({{dir / "a.bin"}}, kLength, 0), data = Dataset::open({{dir / "a.bin"}}, kLength, 0);
    if (packed) {
      plain.pack({.eod_id = kEod, .bos_id = 998});
      data.pack({.eod_id = kEod, .bos_id = 998});
    }
    data.reorder(options(1, 0));
    const auto rows_of = [&](const Dataset& from, int64_t first, int64_t count) {
      HostBatch batch(count, kLength, {});
      for (int64_t row = 0; row < count; ++row) batch.read(row, from, from.locate({.seed = 4}, first + row), {});
      return batch;
    };
    const HostBatch before = rows_of(plain, 0, 12), after = rows_of(data, 0, 12);
    EXPECT_EQ(rows_of(data, 5, 1).tokens, Text(after.tokens.begin() + 5 * kLength, after.tokens.begin() + 6 * kLength));
    int reordered = 0;
    for (size_t i = 0; i < before.tokens.size(); ++i) {
      ASSERT_EQ(before.tokens[i] >= 998, after.tokens[i] == kEod || after.tokens[i] == 998) << i;
      ASSERT_EQ(before.targets[i] < 0, after.targets[i] < 0) << i;
      ASSERT_TRUE(after.targets[i] < 0 || (i + 1) % kLength == 0 || after.targets[i] == after.tokens[i + 1]) << i;
      reordered += after.tokens[i] == kMiddle;
    }
    EXPECT_GT(reordered, 12 * 3);
  }
  write_bytes(dir / "a.bin.loss", std::string(tokens.size(), 1));
  Dataset masked = Dataset::open({{dir / "a.bin"}}, kLength, 0);
  EXPECT_ERROR(masked.reorder(options(0.5)), "fim.rate: 0.5", "loss mask");
}

}  // namespace
}  // namespace athanor
