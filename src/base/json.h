// What users of a JSON library share. Its header stays out of this one: Json is any of its types.
#pragma once
#include <string>
#include <string_view>

#include "base/error.h"

namespace athanor {

// ---- nesting, limited before a text is parsed, because recursion over the tree could overflow the stack

inline constexpr int kMostJsonDepth = 128;  // files read by this program have at most about ten levels

// Whether arrays and objects are nested at most `most` levels deep; ignores brackets in strings. Does not check that
// the text is valid JSON.
bool json_depth_within(std::string_view text, int most = kMostJsonDepth);

// Throws Error(..., Exit::usage) starting with `where` if they are deeper.
void require_json_depth(std::string_view text, const std::string& where, int most = kMostJsonDepth);

// What a JSON library's exception says, for people: without its own name in brackets, and not longer than a line,
// though it may quote a whole file.
std::string json_problem(std::string_view what);

// A text from a file. Throws Error(..., Exit::usage) starting with `where`.
template <class Json>
Json parse_json_text(std::string_view text, const std::string& where) {
  require_json_depth(text, where);
  try {
    return Json::parse(text);
  } catch (const typename Json::parse_error& e) {
    throw Error(cat(where, ": not JSON: ", json_problem(e.what())), Exit::usage);
  }
}

// In one line, or in lines indented by so many spaces a level; invalid UTF-8 is replaced.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace athanor
