// The tokens of a vocabulary, by id and by their bytes. All bytes are in one string; the hash table itself stores
// tokens of up to eight bytes, so that a lookup, which usually fails, seldom reads other memory.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/huge_pages.h"

namespace athanor {

class TokenTable {
 public:
  TokenTable() { rebuild(16); }
  TokenTable(const std::vector<std::string>& tokens);  // [id]; empty: no token with this id
  void reserve(size_t tokens, size_t bytes);

  size_t size() const { return places_.size(); }  // all ids are smaller
  size_t count() const { return count_; }         // number of ids that are tokens
  size_t longest() const { return longest_; }     // longest token, in bytes
  std::string_view operator[](size_t id) const { return {bytes_.data() + places_[id].begin, places_[id].size}; }
  int32_t find(std::string_view bytes) const { return slots_[slot_of(bytes, word_of(bytes))].id; }  // -1: none

  // Stores the bytes of an unused id; empty bytes leave it unused, but size() counts it. Returns false if another id
  // already has these bytes; find() still returns that other id.
  bool put(size_t id, std::string_view bytes);

 private:
  static constexpr uint32_t kInSlot = 8;  // maximum token bytes stored in a slot
  struct Place {
    uint32_t begin = 0, size = 0;  // in bytes_
  };
  struct Slot {
    uint64_t word = 0;  // word_of() of the token
    uint32_t size = 0;  // 0: free
    int32_t id = -1;
  };
  static uint64_t word_of(std::string_view bytes);
  size_t slot_of(std::string_view bytes, uint64_t word) const;
  void rebuild(size_t slots);

  std::string bytes_;
  std::vector<Place> places_;                 // [id]
  std::vector<Slot, HugePages<Slot>> slots_;  // open addressing, a power of two, at most half full
  int shift_ = 0;
  size_t count_ = 0, longest_ = 0;
};

}  // namespace athanor
