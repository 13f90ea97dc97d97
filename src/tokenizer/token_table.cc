#include "tokenizer/token_table.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/error.h"
#include "tokenizer/words.h"

namespace athanor {
namespace {

// Odd constants of splitmix64 [Steele et al. 2014].
constexpr uint64_t kMix1 = 0x9e3779b97f4a7c15ull, kMix2 = 0xbf58476d1ce4e5b9ull, kMix3 = 0x94d049bb133111ebull;

uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * kMix2;
  return hash ^ hash >> 32;
}

}  // namespace

// The bytes of a token of up to kInSlot bytes, so that size and word identify it; a hash of a longer token, eight bytes
// at a time, where the last word may overlap the one before.
uint64_t TokenTable::word_of(std::string_view bytes) {
  const size_t size = bytes.size();
  if (size < kInSlot) return short_word(bytes);
  uint64_t word = word_at(bytes, size - kInSlot, kInSlot);
  for (size_t at = 0; at + kInSlot < size; at += kInSlot) word = mixed(word, word_at(bytes, at, kInSlot));
  return word;
}

// The slot of the token, or the free slot where it would go.
size_t TokenTable::slot_of(std::string_view bytes, uint64_t word) const {
  const auto size = uint32_t(bytes.size());
  size_t slot = size_t(mixed(size * kMix1, word) * kMix3 >> shift_);
  for (;; slot = (slot + 1) & (slots_.size() - 1)) {
    const Slot& s = slots_[slot];
    if (s.size == 0 || (s.word == word && s.size == size && (size <= kInSlot || (*this)[size_t(s.id)] == bytes)))
      return slot;
  }
}

TokenTable::TokenTable(const std::vector<std::string>& tokens) {
  size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  reserve(tokens.size(), bytes);
  for (size_t id = 0; id < tokens.size(); ++id) put(id, tokens[id]);
}

void TokenTable::reserve(size_t tokens, size_t bytes) {
  places_.reserve(tokens);
  bytes_.reserve(bytes);
  rebuild(std::bit_ceil(std::max<size_t>(2 * tokens, 16)));
}

void TokenTable::rebuild(size_t slots) {
  slots_.assign(slots, {});
  shift_ = 64 - std::countr_zero(slots);
  for (size_t id = 0; id < size(); ++id) {
    const std::string_view token = (*this)[id];
    const uint64_t word = word_of(token);
    Slot& slot = slots_[slot_of(token, word)];
    if (slot.id < 0 && !token.empty()) slot = {.word = word, .size = uint32_t(token.size()), .id = int32_t(id)};
  }
}

bool TokenTable::put(size_t id, std::string_view bytes) {
  CHECK(bytes_.size() + bytes.size() <= std::numeric_limits<uint32_t>::max(), "tokens of more than 4 GiB");
  if (id >= size()) places_.resize(id + 1);
  CHECK(places_[id].size == 0, "token ", id, " is there already");
  if (bytes.empty()) return true;
  if (2 * ++count_ > slots_.size()) rebuild(2 * slots_.size());
  places_[id] = {.begin = uint32_t(bytes_.size()), .size = uint32_t(bytes.size())};
  bytes_ += bytes;
  longest_ = std::max(longest_, bytes.size());
  const uint64_t word = word_of(bytes);
  Slot& slot = slots_[slot_of(bytes, word)];
  if (slot.id >= 0) return false;
  slot = {.word = word, .size = uint32_t(bytes.size()), .id = int32_t(id)};
  return true;
}

}  // namespace athanor
