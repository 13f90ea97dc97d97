// One text out of a line of JSON, fast and without building the rest.
#pragma once
#include <string>
#include <string_view>

namespace athanor {

// line: one JSON object, whose member `key` is a string; that string, unescaped, replaces `text`. Of members with the
// same key the last counts. Bytes that are no UTF-8 stay as they are; half a surrogate pair becomes U+FFFD. False: the
// object has no such member. Anything else is an Error: what was expected, and at which byte of the line.
[[nodiscard]] bool json_line_text(std::string_view line, std::string_view key, std::string& text);

}  // namespace athanor
