// Limits the nesting of JSON from files before it is parsed, because recursion over the tree could overflow the stack.
#pragma once
#include <string>
#include <string_view>

namespace athanor {

inline constexpr int kMostJsonDepth = 128;  // files read by this program have at most about ten levels

// Whether arrays and objects are nested at most `most` levels deep; ignores brackets in strings. Does not check that
// the text is valid JSON.
bool json_depth_within(std::string_view text, int most = kMostJsonDepth);

// Throws Error(..., Exit::usage) starting with `where` if they are deeper.
void require_json_depth(std::string_view text, const std::string& where, int most = kMostJsonDepth);

// What a JSON library's exception says, for people: without its own name in brackets, and not longer than a line,
// though it may quote a whole file.
std::string json_problem(std::string_view what);

}  // namespace athanor
