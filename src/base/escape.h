// Escapes text from files and other programs for a terminal, where control characters could move the cursor, change the
// title or send input as the user.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace athanor {

// Length of the well-formed UTF-8 character at text[at] [Unicode 16.0, table 3-7]; 0 if there is none.
size_t character_bytes(std::string_view text, size_t at);

// Writes control characters (C0, DEL and U+0080 to U+009F) not in `kept`, and invalid UTF-8 bytes, as \xNN.
std::string escape_controls(std::string_view text, std::string_view kept = "\n\t");

}  // namespace athanor
