// Text from files and other programs as it may be shown on a terminal: control characters in it would move the cursor,
// change the title or answer in the user's name.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace athanor {

// Bytes of the well-formed UTF-8 character at text[at] [Unicode 16.0, table 3-7]; 0: there is none.
size_t character_bytes(std::string_view text, size_t at);

// Control characters (C0, DEL and U+0080 to U+009F) that are not in `kept`, and bytes that are no UTF-8, as \xNN.
std::string escape_controls(std::string_view text, std::string_view kept = "\n\t");

}  // namespace athanor
