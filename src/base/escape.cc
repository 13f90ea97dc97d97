#include "base/escape.h"

#include <cstddef>
#include <cstdint>

namespace athanor {
namespace {

bool is_control(std::string_view character) {
  const auto first = uint8_t(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && uint8_t(character[1]) < 0xa0;
}

}  // namespace

size_t character_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? uint8_t(text[at + i]) : uint8_t{0}; };
  const uint8_t first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  const size_t bytes = first < 0xc2 || first > 0xf4 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  for (size_t i = 1; i < bytes; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool too_low = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool too_high = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return too_low || too_high ? 0 : bytes;
}

std::string escape_controls(std::string_view text, std::string_view kept) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = character_bytes(text, at);
    const std::string_view shown = text.substr(at, bytes > 0 ? bytes : 1);
    at += shown.size();
    if (bytes > 0 && (!is_control(shown) || kept.find(shown[0]) != kept.npos)) {
      out += shown;
      continue;
    }
    for (const char c : shown) out.append("\\x").append({kHex[uint8_t(c) >> 4], kHex[uint8_t(c) & 15]});
  }
  return out;
}

}  // namespace athanor
