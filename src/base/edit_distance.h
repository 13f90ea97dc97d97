// Edit distance between two words, for "did you mean" suggestions.
#pragma once
#include <cstddef>
#include <string_view>

namespace athanor {

// Number of insertions, deletions, replacements and swaps of adjacent characters [Damerau 1964]; case is ignored.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace athanor
