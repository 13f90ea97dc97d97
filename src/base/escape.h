// Text from files and other programs as it may be shown on a terminal: control characters in it would move the cursor,
// change the title or answer in the user's name.
#pragma once
#include <string>
#include <string_view>

namespace athanor {

// Control characters (C0, DEL and U+0080 to U+009F) that are not in `kept`, and bytes that are no UTF-8, as \xNN.
std::string escape_controls(std::string_view text, std::string_view kept = "\n\t");

}  // namespace athanor
