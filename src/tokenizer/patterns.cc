#include "tokenizer/patterns.h"

#include <array>
#include <bit>
#include <limits>

#include "tokenizer/words.h"

namespace athanor {
namespace {

using Text = std::string_view;

// Returns the end of the run of letters a to z from `at`, testing eight at a time (may stop early within the last seven
// bytes). A loop over characters takes twice as long, because the branch predictor cannot guess its length.
inline size_t small_letters(Text text, size_t at) {
  constexpr uint64_t kEach = 0x0101010101010101, kTop = 0x80 * kEach;
  for (; at + 8 <= text.size(); at += 8) {
    const uint64_t word = word_at(text, at, 8), low = word & ~kTop;
    const uint64_t from_a = low + (0x80 - 'a') * kEach, beyond_z = low + (0x7f - 'z') * kEach;  // in the top bits
    const uint64_t others = ~(from_a & ~beyond_z & ~word) & kTop;
    if (others != 0) return at + size_t(std::countr_zero(others)) / 8;
  }
  return at;
}

// Returns the end of the run of characters from `at` that have a class in `any`.
inline size_t run_of(const CharTable& table, Text text, size_t at, uint8_t any) {
  if (any & kLower) at = small_letters(text, at);
  while (at < text.size()) {
    const auto c = table.at(text, at);
    if (!(c.kind & any)) break;
    at += c.bytes;
  }
  return at;
}

// Returns the end of the run of characters without a class in `none`.
inline size_t run_without(const CharTable& table, Text text, size_t at, uint8_t none) {
  while (at < text.size()) {
    const auto c = table.at(text, at);
    if (c.kind & none) break;
    at += c.bytes;
  }
  return at;
}

// \p{N}{1,most}, where text[at] is a number.
inline size_t numbers(const CharTable& table, Text text, size_t at, int most) {
  for (int n = 0; n < most && at < text.size(); ++n) {
    const auto c = table.at(text, at);
    if (!(c.kind & kNumber)) break;
    at += c.bytes;
  }
  return at;
}

// Size of the contraction 's|'t|'re|'ve|'m|'ll|'d at the apostrophe text[at]; 0: none.
size_t contraction(Text text, size_t at) {
  if (at + 1 >= text.size()) return 0;
  const char a = text[at + 1], b = at + 2 < text.size() ? text[at + 2] : '\0';
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

// Case-insensitive contraction. The long s (U+017F) folds to s [Unicode CaseFolding.txt]; no other letter does.
size_t contraction_any_case(Text text, size_t at) {
  if (at + 1 >= text.size()) return 0;
  const auto lower = [&](size_t i) { return i < text.size() ? char(text[i] | 0x20) : '\0'; };
  const auto letter = [&](size_t i) { return i < text.size() && uint8_t(text[i]) < 0x80 ? lower(i) : '\0'; };
  const char a = letter(at + 1), b = letter(at + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (text.substr(at + 1, 2) == "\xc5\xbf") return 3;
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

// \s+(?!\S)|\s+ from the white space at text[at]: all of it at the end of the text, else all but its last character.
size_t spaces(const CharTable& table, Text text, size_t at) {
  size_t end = at, last = at;
  while (end < text.size()) {
    const auto c = table.at(text, end);
    if (!(c.kind & kSpace)) break;
    last = end;
    end += c.bytes;
  }
  return end == text.size() || last == at ? end : last;
}

// \s*[\r\n]+|\s+(?!\S)|\s+: up to the last newline of the white space, if it has one.
size_t lines(const CharTable& table, Text text, size_t at) {
  size_t end = at, last = at, after_newline = at;
  while (end < text.size()) {
    const auto c = table.at(text, end);
    if (!(c.kind & kSpace)) break;
    last = end;
    end += c.bytes;
    if (c.kind & kNewline) after_newline = end;
  }
  if (after_newline > at) return after_newline;
  return end == text.size() || last == at ? end : last;
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t next_gpt2(const CharTable& table, Text text, size_t at) {
  if (text[at] == '\'')
    if (const size_t size = contraction(text, at)) return at + size;
  const size_t start = at + (text[at] == ' ' && at + 1 < text.size() ? 1 : 0);
  const auto c = table.at(text, start);
  if (c.kind & kLetter) return run_of(table, text, start + c.bytes, kLetter);
  if (c.kind & kNumber) return run_of(table, text, start + c.bytes, kNumber);
  if (!(c.kind & kSpace)) return run_without(table, text, start + c.bytes, kSpace | kLetter | kNumber);
  return spaces(table, text, at);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,kDigits}| ?[^\s\p{L}\p{N}]+[\r\n]*|...
// ...|\s*[\r\n]+|\s+(?!\S)|\s+, and with kJoinEnd \s++$ before these three.
template <int kDigits, bool kJoinEnd>
size_t next_cl100k(const CharTable& table, Text text, size_t at) {
  if (text[at] == '\'')
    if (const size_t size = contraction_any_case(text, at)) return at + size;
  const auto c = table.at(text, at);
  if (c.kind & kLetter) return run_of(table, text, at + c.bytes, kLetter);
  if (c.kind & kNumber) return numbers(table, text, at, kDigits);
  const size_t second = at + c.bytes;
  if (!(c.kind & kNewline) && second < text.size() && table.at(text, second).kind & kLetter)
    return run_of(table, text, second, kLetter);
  constexpr uint8_t kNoSymbol = kSpace | kLetter | kNumber;
  const size_t symbols = at + (text[at] == ' ' ? 1 : 0);
  const size_t end = run_without(table, text, symbols, kNoSymbol);
  if (end > symbols) return run_of(table, text, end, kNewline);
  if (kJoinEnd && run_of(table, text, at, kSpace) == text.size()) return text.size();
  return lines(table, text, at);
}

// The two letter alternatives of o200k from `at`, after the optional character before the letters; 0 if neither
// matches. With U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and W = [\p{Ll}\p{Lm}\p{Lo}\p{M}]: U*W+ first, then U+W*.
size_t o200k_letters(const CharTable& table, Text text, size_t at) {
  size_t end = at, after_both = 0;  // end of U*; end of its last character that is also in W
  while (end < text.size()) {
    const auto c = table.at(text, end);
    if (!(c.kind & (kUpper | kCaseless | kMark))) break;
    end += c.bytes;
    if (c.kind & (kCaseless | kMark)) after_both = end;
  }
  if (end < text.size() && table.at(text, end).kind & kLower)
    return run_of(table, text, end, kLower | kCaseless | kMark);
  if (after_both > 0) return after_both;  // U* backtracks until W+ matches one character
  return end > at ? end : 0;              // U+, with W* empty
}

size_t next_o200k(const CharTable& table, Text text, size_t at) {
  const auto with_contraction = [&](size_t end) {
    return end + (end < text.size() && text[end] == '\'' ? contraction_any_case(text, end) : 0);
  };
  const auto c = table.at(text, at);
  if (c.kind & kLetter) return with_contraction(o200k_letters(table, text, at));
  if (c.kind & kNumber) return numbers(table, text, at, 3);
  if (!(c.kind & kNewline)) {
    const size_t second = at + c.bytes;
    // U*W+ after a mark as the optional character; if only U+ would match there, the mark itself is W+.
    const size_t end = second < text.size() ? o200k_letters(table, text, second) : 0;
    if (c.kind & kMark) {
      const bool lower = end > 0 && table.of(char_at(text, char_before(text, end)).code) & (kLower | kCaseless | kMark);
      return with_contraction(lower ? end : second);
    }
    if (end > 0) return with_contraction(end);
  }
  const size_t symbols = at + (text[at] == ' ' ? 1 : 0);
  size_t end = run_without(table, text, symbols, kSpace | kLetter | kNumber);
  if (end == symbols) return lines(table, text, at);
  while (end < text.size() && (text[end] == '\r' || text[end] == '\n' || text[end] == '/')) ++end;
  return end;
}

// \p{N}{1,kMost}, or the text between numbers.
template <int kMost>
size_t next_numbers(const CharTable& table, Text text, size_t at) {
  const auto c = table.at(text, at);
  return c.kind & kNumber ? numbers(table, text, at, kMost) : run_without(table, text, at + c.bytes, kNumber);
}

// As written in tiktoken 0.14 and in the models' tokenizer.json files. Patterns of only numbers occur inside sequences.
constexpr std::array<Pattern, 11> kPatterns{{
    {"gpt2", R"re('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re", next_gpt2},
    {"gpt2", R"re('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)re", next_gpt2},
    {"gpt2", R"re('s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)re", next_gpt2},
    {"cl100k",
     R"re('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)re",
     next_cl100k<3, true>},
    {"cl100k-2023",
     R"re('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)re",
     next_cl100k<3, false>},
    {"llama3",
     R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
     next_cl100k<3, false>},
    {"qwen2",
     R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
     next_cl100k<1, false>},
    {"o200k",
     R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re",
     next_o200k},
    {"numbers-1", R"re(\p{N})re", next_numbers<1>, false},
    {"numbers-3", R"re(\p{N}{1,3})re", next_numbers<3>, false},
    {"numbers", R"re(\p{N}+)re", next_numbers<std::numeric_limits<int>::max()>, false},
}};

}  // namespace

const Pattern* find_pattern(std::string_view name_or_regex) {
  for (const Pattern& p : kPatterns)
    if (name_or_regex == p.name || name_or_regex == p.regex) return &p;
  return nullptr;
}

std::string pattern_names() {
  std::string names;
  for (const Pattern& p : kPatterns)
    if (find_pattern(p.name) == &p) names += (names.empty() ? "" : ", ") + std::string(p.name);
  return names;
}

size_t last_safe_cut(const CharTable& table, std::string_view text, size_t from, size_t to) {
  for (size_t at = to; at > from; --at) {
    if (at >= text.size() || (text[at] != ' ' && text[at] != '\n')) continue;
    if (table.of(char_at(text, char_before(text, at)).code) & (kLetter | kNumber)) return at;
  }
  return from;
}

}  // namespace athanor
