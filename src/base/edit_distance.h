// How far two words are apart: for "did you mean".
#pragma once
#include <cstddef>
#include <string_view>

namespace athanor {

// Insertions, deletions, replacements and swaps of neighbours [Damerau 1964], case ignored.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace athanor
