// Formats names from files for messages: quoted, shortened, without control characters, which could manipulate the
// terminal. Not named quoted: overload resolution would find std::quoted, which does not escape them.
#pragma once
#include <string>
#include <string_view>

namespace athanor {

inline std::string printable(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  static constexpr size_t kMaxShown = 120;
  const std::string_view shown = text.substr(0, kMaxShown);
  std::string out = "'";
  size_t control_left = 0;  // remaining bytes of a control character
  for (size_t i = 0; i < shown.size(); ++i) {
    const auto byte = static_cast<unsigned char>(shown[i]);
    const auto next = static_cast<unsigned char>(i + 1 < shown.size() ? shown[i + 1] : 0);
    if (byte < 0x20 || byte == 0x7f) control_left = 1;
    if (byte == 0xc2 && next >= 0x80 && next < 0xa0) control_left = 2;  // U+0080 to U+009F
    if (control_left == 0) {
      out += shown[i];
      continue;
    }
    out.append("\\x").append({kHex[byte >> 4], kHex[byte & 15]});
    --control_left;
  }
  return out + (text.size() > kMaxShown ? "...'" : "'");
}

}  // namespace athanor
