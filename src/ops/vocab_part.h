// Vocabulary shard: the rows of an embedding or output head that one tensor-parallel rank has.
#pragma once
#include <cstdint>

namespace athanor {

// Tokens [first, first + count) of a vocabulary of `total` tokens. total 0: not sharded.
struct VocabPart {
  int64_t first = 0, count = 0, total = 0;
  explicit operator bool() const { return total > 0; }
  // Returns the local row of a token below total, or -1 if another rank has it.
  int32_t row(int32_t token) const {
    if (total == 0) return token;
    return token >= first && token < first + count ? int32_t(token - first) : -1;
  }
};

}  // namespace athanor
