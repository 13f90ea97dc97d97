// The check that JSON from disk passes before it is parsed: one value, valid UTF-8, no duplicate keys (parsers keep one
// of them silently), bounded nesting, no NUL byte (some parsers take it for the end of the text).
#pragma once
#include <string>
#include <string_view>

namespace athanor {

// Throws Error starting with `where`, naming the byte or key.
void require_strict_json(std::string_view text, const std::string& where, int max_depth = 32);

// Only the last point: for readers that do the rest themselves.
void refuse_nul_bytes(std::string_view text, const std::string& where);

}  // namespace athanor
