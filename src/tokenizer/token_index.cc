#include "tokenizer/token_index.h"

#include <algorithm>
#include <bit>

#include "tokenizer/words.h"

namespace athanor {
namespace {

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
  } else {
    mix(short_word(bytes));
  }
  hash *= 0x94d049bb133111ebull;
  return hash ^ hash >> 29;
}

}  // namespace

TokenIndex::TokenIndex(const std::vector<std::string>& tokens) {
  slots_.resize(std::bit_ceil(std::max<size_t>(2 * tokens.size(), 16)));
  mask_ = slots_.size() - 1;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) continue;
    const uint64_t hash = hash_of(tokens[id]);
    Slot& slot = slots_[slot_of(tokens[id], hash, tokens)];
    if (slot.id < 0)
      slot = {uint32_t(hash >> 32), int32_t(id)};
    else
      repeated_ = int32_t(id);
  }
}

// Where the token is, or the free slot where it would be.
size_t TokenIndex::slot_of(std::string_view bytes, uint64_t hash, const std::vector<std::string>& tokens) const {
  size_t slot = hash & mask_;
  while (slots_[slot].id >= 0 && (slots_[slot].tag != uint32_t(hash >> 32) || tokens[size_t(slots_[slot].id)] != bytes))
    slot = (slot + 1) & mask_;
  return slot;
}

int32_t TokenIndex::find(std::string_view bytes, const std::vector<std::string>& tokens) const {
  return slots_[slot_of(bytes, hash_of(bytes), tokens)].id;
}

}  // namespace athanor
