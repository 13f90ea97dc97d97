// The bytes of a short text as integers, to compare and hash many at once.
#pragma once
#include <cstdint>
#include <cstring>
#include <string_view>

namespace athanor {

// bytes[at, at + size), with size <= 8, as an integer.
inline uint64_t word_at(std::string_view bytes, size_t at, size_t size) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, size);
  return word;
}

// Packs fewer than eight bytes into one integer, unique among texts of this size.
inline uint64_t short_word(std::string_view bytes) {
  const size_t size = bytes.size();
  if (size >= 4) return word_at(bytes, 0, 4) | word_at(bytes, size - 4, 4) << 32;
  if (size == 0) return 0;
  return uint64_t{uint8_t(bytes[0])} | uint64_t{uint8_t(bytes[size / 2])} << 8 |
         uint64_t{uint8_t(bytes[size - 1])} << 16;
}

}  // namespace athanor
