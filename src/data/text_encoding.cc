#include "data/text_encoding.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace athanor {
namespace {

bool is_continuation(char c) { return (uint8_t(c) & 0xc0) == 0x80; }

// Bytes of a character whose first byte is `first`; 0: not a first byte.
size_t length_of(uint8_t first) {
  return first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

// True if `c` may follow `first`: excludes overlong forms, surrogates and characters beyond U+10FFFF.
bool may_follow(uint8_t first, uint8_t c) {
  const uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  return c >= low && c <= high;
}

bool is_ascii(const char* eight) {
  uint64_t word = 0;
  std::memcpy(&word, eight, sizeof word);
  return (word & 0x8080808080808080u) == 0;
}

}  // namespace

std::string_view wide_encoding(std::string_view start) {
  using namespace std::string_view_literals;
  if (start.starts_with("\xff\xfe\0\0"sv) || start.starts_with("\0\0\xfe\xff"sv)) return "UTF-32";
  if (start.starts_with("\xff\xfe"sv) || start.starts_with("\xfe\xff"sv)) return "UTF-16";
  constexpr size_t kEnough = 16;
  if (start.size() < kEnough) return "";
  size_t zeros[2] = {};  // at even and odd byte positions
  for (size_t i = 0; i < start.size(); ++i) zeros[i % 2] += start[i] == '\0';
  const auto [few, many] = std::minmax(zeros[0], zeros[1]);
  return few == 0 && many > start.size() / 4 ? "UTF-16" : "";
}

size_t drop_byte_order_mark(std::string& start, const std::string& path) {
  if (!start.starts_with(kByteOrderMark)) return 0;
  log::info(path, ": the UTF-8 byte order mark at the start is no part of the text and was dropped");
  start.erase(0, kByteOrderMark.size());
  return kByteOrderMark.size();
}

int64_t bytes_outside_utf8(std::string_view text) {
  int64_t outside = 0;
  size_t at = 0;
  while (at < std::min<size_t>(text.size(), 3) && is_continuation(text[at]))
    ++at;  // skips the end of a character that
           // was cut off
  while (at < text.size()) {
    if (at + 8 <= text.size() && is_ascii(text.data() + at)) {
      at += 8;
      continue;
    }
    const auto first = uint8_t(text[at]);
    const size_t length = length_of(first);
    size_t have = 1;
    while (have < length && at + have < text.size() && is_continuation(text[at + have]) &&
           (have > 1 || may_follow(first, uint8_t(text[at + have]))))
      ++have;
    if (length > 0 && at + have == text.size()) break;  // complete, or cut off by the end of the text
    outside += have < length || length == 0;
    at += have == length ? length : 1;
  }
  return outside;
}

}  // namespace athanor
