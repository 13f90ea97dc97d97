#include "metrics/json_text.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/escape.h"

namespace athanor {
namespace {

void append_ascii(std::string& out, char c) {
  static constexpr char kHex[] = "0123456789abcdef";
  constexpr std::string_view kNamed = "\"\\\n\r\t", kNames = "\"\\nrt";
  if (const size_t at = kNamed.find(c); at != kNamed.npos) {
    out += '\\';
    out += kNames[at];
    return;
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
    const size_t length = character_bytes(text, 0);
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
