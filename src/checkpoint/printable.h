// Names from files as they may appear in messages: quoted, short, without control characters (a hostile file must not
// write to the terminal). Not called quoted: std::quoted would be found first and escapes nothing of that.
#pragma once
#include <string>
#include <string_view>

namespace athanor {

inline std::string printable(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  static constexpr size_t kMaxShown = 120;
  std::string out = "'";
  for (char c : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f)
      out += c;
    else
      out.append("\\x").append({kHex[byte >> 4], kHex[byte & 15]});
  }
  return out + (text.size() > kMaxShown ? "...'" : "'");
}

}  // namespace athanor
