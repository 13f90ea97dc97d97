// Extracts one string from a line of JSON without building the rest.
#pragma once
#include <string>
#include <string_view>

namespace athanor {

// line: a JSON object whose member `key` is a string; the unescaped string replaces `text`. Of duplicate keys the last
// counts. Invalid UTF-8 is kept; half a surrogate pair becomes U+FFFD. False: no such member. Anything else throws an
// Error with what was expected, and at which byte.
[[nodiscard]] bool json_line_text(std::string_view line, std::string_view key, std::string& text);

}  // namespace athanor
