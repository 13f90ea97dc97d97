// Appends valid JSON strings and numbers to text, for the streaming writers of this folder.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace athanor {

// Appends a quoted and escaped string; invalid UTF-8 becomes U+FFFD.
void append_json_string(std::string& out, std::string_view text);

// Appends the shortest digits that parse back to the same value, in any locale; `null` if not finite.
void append_json_number(std::string& out, double value);
void append_json_number(std::string& out, int64_t value);
void append_json_number(std::string& out, uint64_t value);

}  // namespace athanor
