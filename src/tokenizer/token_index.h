// Finds the id of a token by its bytes: open addressing over hashes, so that a miss, the common case, touches no token.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/huge_pages.h"

namespace athanor {

class TokenIndex {
 public:
  // tokens[id]; empty ones are no tokens, and of equal ones the first counts. The vector must stay as it is.
  explicit TokenIndex(const std::vector<std::string>& tokens);
  int32_t find(std::string_view bytes, const std::vector<std::string>& tokens) const;  // -1: none
  int32_t repeated() const { return repeated_; }  // a token that is there a second time; -1: none

 private:
  struct Slot {
    uint32_t tag = 0;  // high half of the hash
    int32_t id = -1;   // -1: free
  };
  size_t slot_of(std::string_view bytes, uint64_t hash, const std::vector<std::string>& tokens) const;

  std::vector<Slot, HugePages<Slot>> slots_;  // at most half full
  uint64_t mask_ = 0;
  int32_t repeated_ = -1;
};

}  // namespace athanor
