#include "tokenizer/unicode.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/unicode_tables.h"

namespace athanor {

Char char_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return i < text.size() ? uint8_t(text[i]) : uint8_t{0}; };
  const auto follows = [&](size_t i) { return (byte(at + i) & 0xc0) == 0x80; };
  const auto bits = [&](size_t i) { return uint32_t(byte(at + i) & 0x3f); };
  const uint8_t first = byte(at);
  const Char invalid{kInvalidByte | first, 1};
  // Well-formed sequences [Unicode 16.0, table 3-7].
  if (first < 0x80) return {first, 1};
  if (first < 0xc2 || first > 0xf4 || !follows(1)) return invalid;
  if (first < 0xe0) return {uint32_t(first & 0x1f) << 6 | bits(1), 2};
  if (!follows(2)) return invalid;
  if (first < 0xf0) {
    const uint32_t code = uint32_t(first & 0x0f) << 12 | bits(1) << 6 | bits(2);
    return code < 0x800 || (code >= 0xd800 && code < 0xe000) ? invalid : Char{code, 3};
  }
  if (!follows(3)) return invalid;
  const uint32_t code = uint32_t(first & 0x07) << 18 | bits(1) << 12 | bits(2) << 6 | bits(3);
  return code < 0x10000 || code > 0x10ffff ? invalid : Char{code, 4};
}

size_t char_before(std::string_view text, size_t end) {
  for (size_t back = 2; back <= std::min<size_t>(4, end); ++back)
    if (char_at(text.substr(0, end), end - back).bytes == back) return end - back;
  return end - 1;
}

void append_utf8(std::string& out, uint32_t code) {
  CHECK(code < 0xd800 || (code >= 0xe000 && code <= 0x10ffff), "no character has the number ", code);
  if (code < 0x80) {
    out += char(code);
  } else if (code < 0x800) {
    out += {char(0xc0 | code >> 6), char(0x80 | (code & 0x3f))};
  } else if (code < 0x10000) {
    out += {char(0xe0 | code >> 12), char(0x80 | (code >> 6 & 0x3f)), char(0x80 | (code & 0x3f))};
  } else {
    out += {char(0xf0 | code >> 18), char(0x80 | (code >> 12 & 0x3f)), char(0x80 | (code >> 6 & 0x3f)),
            char(0x80 | (code & 0x3f))};
  }
}

bool is_punctuation(uint32_t code) {
  return (std::ranges::upper_bound(punctuation_ends, code) - punctuation_ends.begin()) % 2 == 1;
}

CharTable::CharTable() : classes_(std::make_unique<uint8_t[]>(kCodePoints)) {
  for (size_t i = 0; i < class_runs.size(); ++i) {
    const uint32_t first = class_runs[i] >> 8, end = i + 1 < class_runs.size() ? class_runs[i + 1] >> 8 : kCodePoints;
    std::fill(&classes_[first], &classes_[0] + end, uint8_t(class_runs[i] & 0xff));
  }
}

}  // namespace athanor
