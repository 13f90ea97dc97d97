// Made by scripts/make_unicode_tables.py from Unicode 16.0.0; do not edit. The sizes of its tables; their layout is
// told where they are.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace athanor {

inline constexpr size_t kClassRuns = 3194;
inline constexpr size_t kPunctuationEnds = 312;
inline constexpr size_t kDecompositions = 2060;
inline constexpr size_t kCombiningRuns = 496;
inline constexpr size_t kCompatibleWords = 3034;
extern const std::array<uint32_t, kClassRuns> class_runs;
extern const std::array<uint32_t, kPunctuationEnds> punctuation_ends;
extern const std::array<uint64_t, kDecompositions> decompositions;
extern const std::array<uint64_t, kCompatibleWords> compatible;
extern const std::array<uint32_t, kCombiningRuns> combining_runs;

}  // namespace athanor
