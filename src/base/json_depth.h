// A limit that JSON from files must keep before it is parsed: whoever walks a tree by recursion has a stack to lose.
#pragma once
#include <string>
#include <string_view>

namespace athanor {

inline constexpr int kMostJsonDepth = 128;  // the deepest file that is read for its content has some ten levels

// Whether arrays and objects are nested at most so deep; brackets in strings do not count. Says nothing about whether
// the text is JSON.
bool json_depth_within(std::string_view text, int most = kMostJsonDepth);

// Throws Error(..., Exit::usage) that opens with `where` if they are deeper.
void require_json_depth(std::string_view text, const std::string& where, int most = kMostJsonDepth);

// What a JSON library's exception says, for people: without its own name in brackets, and not longer than a line,
// though it may quote a whole file.
std::string json_problem(std::string_view what);

}  // namespace athanor
