// Extracts one string from a line of JSON without building the rest.
#pragma once
#include <string>
#include <string_view>

namespace athanor {

// Parses a JSON object and, if it has a string under `key`, stores the unescaped string in `text` and returns true;
// false: no such key. The last of duplicate keys counts. Invalid UTF-8 is kept; half a surrogate pair becomes U+FFFD.
// Invalid JSON throws an Error with the byte position and what was expected.
[[nodiscard]] bool json_line_text(std::string_view line, std::string_view key, std::string& text);

}  // namespace athanor
