#include "tokenizer/token_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace athanor {
namespace {

uint64_t word_at(std::string_view bytes, size_t at, size_t size) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, size);
  return word;
}

// Multiply and mix, eight bytes at a time, the last of them once more where the size asks for it; odd constants of
// splitmix64 [Steele et al. 2014].
uint64_t hash_of(std::string_view bytes) {
  const size_t size = bytes.size();
  uint64_t hash = size * 0x9e3779b97f4a7c15ull;
  const auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * 0xbf58476d1ce4e5b9ull;
    hash ^= hash >> 32;
  };
  if (size >= 8) {
    for (size_t at = 0; at + 8 < size; at += 8) mix(word_at(bytes, at, 8));
    mix(word_at(bytes, size - 8, 8));
  } else if (size >= 4) {
    mix(word_at(bytes, 0, 4) | word_at(bytes, size - 4, 4) << 32);
  } else if (size > 0) {
    mix(uint64_t{uint8_t(bytes[0])} | uint64_t{uint8_t(bytes[size / 2])} << 8 |
        uint64_t{uint8_t(bytes[size - 1])} << 16);
  }
  hash *= 0x94d049bb133111ebull;
  return hash ^ hash >> 29;
}

}  // namespace

TokenIndex::TokenIndex(const std::vector<std::string>& tokens) {
  slots_.resize(std::bit_ceil(std::max<size_t>(2 * tokens.size(), 16)));
  mask_ = slots_.size() - 1;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty() || find(tokens[id], tokens) >= 0) continue;
    const uint64_t hash = hash_of(tokens[id]);
    size_t slot = hash & mask_;
    while (slots_[slot].id >= 0) slot = (slot + 1) & mask_;
    slots_[slot] = {uint32_t(hash >> 32), int32_t(id)};
  }
}

int32_t TokenIndex::find(std::string_view bytes, const std::vector<std::string>& tokens) const {
  const uint64_t hash = hash_of(bytes);
  for (size_t slot = hash & mask_; slots_[slot].id >= 0; slot = (slot + 1) & mask_)
    if (slots_[slot].tag == uint32_t(hash >> 32) && tokens[size_t(slots_[slot].id)] == bytes) return slots_[slot].id;
  return -1;
}

}  // namespace athanor
