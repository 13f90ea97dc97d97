#include "base/json.h"

#include <cstddef>

namespace athanor {

bool json_depth_within(std::string_view text, int most) {
  int depth = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') {
      do {
        at = text.find_first_of("\"\\", at + 1);
        if (at == text.npos) return true;
      } while (text[at] == '\\' && ++at < text.size());
    } else if (text[at] == '[' || text[at] == '{') {
      if (++depth > most) return false;
    } else if (text[at] == ']' || text[at] == '}') {
      --depth;
    }
  }
  return true;
}

void require_json_depth(std::string_view text, const std::string& where, int most) {
  if (!json_depth_within(text, most))
    throw Error(cat(where, ": JSON nested deeper than ", most, " levels"), Exit::usage);
}

std::string json_problem(std::string_view what) {
  constexpr size_t kMost = 200;
  const size_t end = what.find("] ");
  if (what.starts_with("[json.exception.") && end != std::string_view::npos) what.remove_prefix(end + 2);
  return std::string(what.substr(0, kMost)) + (what.size() > kMost ? "..." : "");
}

}  // namespace athanor
