// Rows of logits over a vocabulary shard with padding columns, and their targets, for cases of ops.
#pragma once
#include "tests/ops/cases.h"

namespace athanor {

struct VocabRows {
  int64_t n;
  VocabPart part;
  int64_t padded;
};

inline std::string name_of(const VocabRows& s) {
  return cat(s.n, "x", s.part.count, "/", s.padded, " from ", s.part.first, " of ", s.part.total);
}

// Values below 8, in steps that all dtypes hold exactly, so that sums identify a target's logit. Many are equal.
inline double logit(const VocabRows& s, int64_t row, int64_t column) {
  return double(random_bits(kCaseSeed, 1, uint64_t(row * s.padded + column)) % 128) / 8 - 8;
}
inline Init logits(const VocabRows& s) {  // padding columns hold what would win every softmax
  return
      [s](uint64_t, int64_t i) { return i % s.padded < s.part.count ? logit(s, i / s.padded, i % s.padded) : 1000.0; };
}

// One of five rows is ignored.
inline int32_t target(const VocabRows& s, int64_t row) {
  return row % 5 == 2 ? int32_t(-1 - row) : int32_t(random_bits(kCaseSeed, 2, uint64_t(row)) % uint64_t(s.part.total));
}
inline Init targets(const VocabRows& s) {
  return [s](uint64_t, int64_t i) { return double(target(s, i)); };
}

}  // namespace athanor
