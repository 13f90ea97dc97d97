#include "metrics/json_text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace athanor {
namespace {

// Length of the UTF-8 sequence that starts `s`, 0 if there is none [Unicode 15, table 3-7].
size_t utf8_length(std::string_view s) {
  const auto at = [&](size_t i) { return i < s.size() ? uint8_t(s[i]) : uint8_t(0); };
  const auto within = [&](size_t i, uint8_t low, uint8_t high) { return at(i) >= low && at(i) <= high; };
  const uint8_t c = at(0);
  if (c < 0x80) return 1;
  if (c >= 0xC2 && c <= 0xDF) return within(1, 0x80, 0xBF) ? 2 : 0;
  if (c >= 0xE0 && c <= 0xEF) {
    const bool second = within(1, c == 0xE0 ? 0xA0 : 0x80, c == 0xED ? 0x9F : 0xBF);
    return second && within(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (c >= 0xF0 && c <= 0xF4) {
    const bool second = within(1, c == 0xF0 ? 0x90 : 0x80, c == 0xF4 ? 0x8F : 0xBF);
    return second && within(2, 0x80, 0xBF) && within(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

void append_ascii(std::string& out, char c) {
  static constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      break;
  }
  if (uint8_t(c) >= 0x20 && c != 0x7f) {
    out += c;
    return;
  }
  out += "\\u00";
  out += kHex[uint8_t(c) >> 4];
  out += kHex[uint8_t(c) & 15];
}

template <class Number>
void append_digits(std::string& out, Number value) {
  std::array<char, 40> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out.append(digits.data(), end);
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) out += "\xEF\xBF\xBD";
    if (length == 1) append_ascii(out, text[0]);
    if (length > 1) out += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
}

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  append_digits(out, value);
}

void append_json_number(std::string& out, int64_t value) { append_digits(out, value); }
void append_json_number(std::string& out, uint64_t value) { append_digits(out, value); }

}  // namespace athanor
