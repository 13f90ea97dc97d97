// Validates JSON from disk before it is parsed: a single value, valid UTF-8, no duplicate keys (parsers silently keep
// one of them), bounded nesting, no NUL byte (some parsers stop there).
#pragma once
#include <string>
#include <string_view>

namespace athanor {

// Throws Error starting with `where`, naming the byte or key.
void require_strict_json(std::string_view text, const std::string& where, int max_depth = 32);

// Checks for NUL bytes only: for readers that check the rest themselves.
void refuse_nul_bytes(std::string_view text, const std::string& where);

}  // namespace athanor
