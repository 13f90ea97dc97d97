// Helpers shared by the users of a JSON library. Templates over the library's type Json avoid including its header.
#pragma once
#include <string>
#include <string_view>

#include "base/error.h"

namespace athanor {

// ---- nesting depth, checked before parsing, because recursion over the tree could overflow the stack

inline constexpr int kMostJsonDepth = 128;  // files read by this program have at most about ten levels

// Whether arrays and objects are nested at most `most` levels deep; ignores brackets in strings. Does not check that
// the text is valid JSON.
bool json_depth_within(std::string_view text, int most = kMostJsonDepth);

// Throws Error(..., Exit::usage) starting with `where` if the nesting is deeper.
void require_json_depth(std::string_view text, const std::string& where, int most = kMostJsonDepth);

// Message of a JSON library's exception for users: without the library's own prefix in brackets, and cut to one line,
// since it may quote a whole file.
std::string json_problem(std::string_view what);

// Parses JSON text from a file. Throws Error(..., Exit::usage) starting with `where`.
template <class Json>
Json parse_json_text(std::string_view text, const std::string& where) {
  require_json_depth(text, where);
  try {
    return Json::parse(text);
  } catch (const typename Json::exception& e) {  // also out_of_range: a number beyond the range of double
    throw Error(cat(where, ": not JSON: ", json_problem(e.what())), Exit::usage);
  }
}

// Serializes to one line, or to lines indented by `indent` spaces per level; invalid UTF-8 is replaced.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace athanor
