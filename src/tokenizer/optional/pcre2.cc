// Implements Regex with PCRE2. In Debian 12 and Ubuntu 24.04, PCRE2's tables are those of Unicode 14, which is one
// reason why well-known patterns do not use it.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <span>

#include "base/error.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace athanor {
namespace {

constexpr size_t kStackStart = 32 << 10, kStackMost = 64 << 20;  // bytes of the JIT backtracking stack

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};

using Code = std::unique_ptr<pcre2_code, Free>;

Code compiled(const std::string& pattern, const std::string& as_given) {
  const std::unique_ptr<pcre2_compile_context, Free> context(pcre2_compile_context_create(nullptr));
  CHECK(context, "out of memory for a split pattern");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE at = 0;
  Code made(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &code, &at, context.get()));
  if (!made)
    throw Error(cat("split pattern ", as_given, ": ", message_of(code), " at character ", at, " of ", pattern,
                    ", which is its form for PCRE2"),
                Exit::usage);
  pcre2_jit_compile(made.get(), PCRE2_JIT_COMPLETE);  // if there is no JIT for this machine, matching is only slower
  return made;
}

struct CodeRange {
  uint32_t first, last;
};

// The characters missing in PCRE2's tables, ascending. Planes 4 to 13 are unassigned.
std::vector<CodeRange> unassigned() {
  std::string all;
  for (uint32_t code = 0x80; code < 0xf0000; code = code + 1 == 0xd800    ? 0xe000
                                                    : code + 1 == 0x40000 ? 0xe0000
                                                                          : code + 1)
    append_utf8(all, code);
  const Code pattern = compiled("\\p{Cn}+", "\\p{Cn}+");
  const std::unique_ptr<pcre2_match_data, Free> match(pcre2_match_data_create(1, nullptr));
  CHECK(match, "out of memory for a split pattern");
  std::vector<CodeRange> ranges;
  for (size_t at = 0; pcre2_match(pattern.get(), reinterpret_cast<PCRE2_SPTR>(all.data()), all.size(), at, 0,
                                  match.get(), nullptr) > 0;) {
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match.get());
    ranges.push_back({char_at(all, span[0]).code, char_at(all, char_before(all, span[1])).code});
    at = span[1];
  }
  return ranges;
}

void add_range(std::string& set, CodeRange range) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "\\x{%x}-\\x{%x}", unsigned(range.first), unsigned(range.last));
  set += text.data();
}

// Subcategories of the letters, marks and numbers added since Unicode 14 that CharTable does not tell apart; all other
// letters without case are Lo, all other marks Mn, all other numbers Nd [Unicode 16.0, UnicodeData.txt].
constexpr CodeRange kNewerLm[] = {{0x10d4e, 0x10d4e}, {0x10d6f, 0x10d6f}, {0x16d40, 0x16d42},
                                  {0x16d6b, 0x16d6c}, {0x1e030, 0x1e06d}, {0x1e4eb, 0x1e4eb}};
constexpr CodeRange kNewerMc[] = {{0xcf3, 0xcf3},     {0x113b8, 0x113ba}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5},
                                  {0x113c7, 0x113ca}, {0x113cc, 0x113cd}, {0x113cf, 0x113cf}, {0x11f03, 0x11f03},
                                  {0x11f34, 0x11f35}, {0x11f3e, 0x11f3f}, {0x11f41, 0x11f41}, {0x1612a, 0x1612c}};
constexpr CodeRange kNewerNo[] = {{0x1d2c0, 0x1d2d3}};  // Kaktovik numerals

bool is_in(std::span<const CodeRange> ranges, uint32_t code) {
  return std::ranges::any_of(ranges, [&](const CodeRange& r) { return r.first <= code && code <= r.last; });
}

// Moves the letters, marks and numbers of Unicode 16 from `missing` to the result.
NewerCharacters take_newer(std::vector<CodeRange>& missing) {
  const CharTable table;
  NewerCharacters newer;
  const auto set_of = [&](uint32_t code) -> std::string* {
    const uint8_t kind = table.of(code);
    if (kind & kUpper) return &newer.upper;
    if (kind & kLower) return &newer.lower;
    if (kind & kCaseless) return is_in(kNewerLm, code) ? &newer.modifier : &newer.other_letter;
    if (kind & kMark) return is_in(kNewerMc, code) ? &newer.spacing_mark : &newer.nonspacing_mark;
    if (kind & kNumber) return is_in(kNewerNo, code) ? &newer.other_number : &newer.digit;
    return nullptr;
  };
  std::vector<CodeRange> left;
  for (const CodeRange& range : missing)
    for (uint32_t first = range.first; first <= range.last;) {
      std::string* set = set_of(first);
      uint32_t last = first;
      while (last < range.last && set_of(last + 1) == set) ++last;
      if (set)
        add_range(*set, {first, last});
      else
        left.push_back({first, last});
      first = last + 1;
    }
  missing = std::move(left);
  return newer;
}

// Characters missing in PCRE2's tables: `newer` are those that our own tables have, `unknown` the others.
struct Lacking {
  std::vector<CodeRange> unknown;
  NewerCharacters newer;
};
const Lacking& lacking() {
  static const Lacking found = [] {
    Lacking l{.unknown = unassigned(), .newer = {}};
    l.newer = take_newer(l.unknown);
    return l;
  }();
  return found;
}

class Pcre2 final : public Regex {
 public:
  Pcre2(const std::string& pattern, RegexDialect dialect)
      : pattern_(pattern), code_(compiled(to_pcre2(pattern, dialect, lacking().newer), pattern)) {}

  std::string unicode_version() const override {
    std::array<char, 64> text{};
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text.data());
    return text.data();
  }
  int64_t unknown_characters() const override { return unknown_seen_; }

  void match(std::string_view text, std::vector<Match>& matches) const override {
    const std::unique_ptr<pcre2_match_data, Free> found_at(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    const std::unique_ptr<pcre2_match_context, Free> context(pcre2_match_context_create(nullptr));
    const std::unique_ptr<pcre2_jit_stack, Free> stack(pcre2_jit_stack_create(kStackStart, kStackMost, nullptr));
    CHECK(found_at && context && stack, "out of memory for a split pattern");
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    // Continues like the iterators of the onig and fancy-regex crates: an empty match counts, except directly after a
    // match.
    size_t last = std::string_view::npos;  // the end of the last match
    for (size_t at = 0; at <= text.size();) {
      const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, 0,
                                    found_at.get(), context.get());
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0)
        throw Error(cat("split pattern ", pattern_, ": ", message_of(found), " at byte ", at, " of a text"));
      const PCRE2_SIZE* span = pcre2_get_ovector_pointer(found_at.get());
      if (span[0] == span[1] && span[1] == last) {
        at += at < text.size() ? char_at(text, at).bytes : 1;
        continue;
      }
      matches.push_back({span[0], span[1]});
      at = last = span[1];
    }
    count_unknown(text);
  }

 private:
  void count_unknown(std::string_view text) const {
    const std::vector<CodeRange>& unknown = lacking().unknown;
    int64_t seen = 0;
    for (size_t at = 0; at < text.size();) {
      if (uint8_t(text[at]) < 0x80) {
        ++at;
        continue;
      }
      const Char c = char_at(text, at);
      at += c.bytes;
      if (c.code & kInvalidByte) continue;
      const auto after = std::upper_bound(unknown.begin(), unknown.end(), c.code,
                                          [](uint32_t code, const CodeRange& range) { return code < range.first; });
      if (after != unknown.begin() && c.code <= std::prev(after)->last) ++seen;
    }
    if (seen > 0) unknown_seen_ += seen;  // an atomic, shared by all threads
  }

  std::string pattern_;
  Code code_;
  mutable std::atomic<int64_t> unknown_seen_ = 0;
};

}  // namespace

std::shared_ptr<const Regex> Regex::compile(const std::string& pattern, RegexDialect dialect) {
  return std::make_shared<Pcre2>(pattern, dialect);
}

}  // namespace athanor
