// Visible keys of a query in sparse attention: the "fixed" pattern of Child et al. 2019, "Generating Long Sequences
// with Sparse Transformers", sec. 4.3, with one pattern for all heads, as in DeepSpeed's FixedSparsityConfig
// (unidirectional).
#pragma once
#include <cstdint>

#include "base/host_device.h"

namespace athanor {

// Positions are cut into groups (l tokens in the paper). A query sees, causally, the keys of its own group and the last
// `summary` keys (c in the paper) of every earlier group.
struct SparsePattern {
  int64_t group = 0;    // tokens; 0 = every earlier key is visible
  int64_t summary = 0;  // tokens, fewer than `group`
};

constexpr int64_t kNoPosition = int64_t{1} << 62;  // beyond every position

// First position whose query no longer sees the key at position k. Positions are at least 0.
ATHANOR_HOST_DEVICE inline int64_t seen_until(const SparsePattern& p, int64_t k) {
  if (p.group == 0 || k % p.group >= p.group - p.summary) return kNoPosition;
  return k - k % p.group + p.group;
}

struct PositionRange {
  int64_t first, last;  // [first, last)
};
// First range of keys, at or after position `from`, that the query at position q or a later query sees. The range that
// contains q has no end, since each later key is visible to the query at its own position.
inline PositionRange next_visible(const SparsePattern& p, int64_t q, int64_t from) {
  if (p.group == 0) return {from, kNoPosition};
  const int64_t own = q - q % p.group;  // begin of the query's group
  if (from >= own) return {from, kNoPosition};
  if (p.summary == 0) return {own, kNoPosition};
  const int64_t end = from - from % p.group + p.group, first = end - p.summary;
  return {first > from ? first : from, end == own ? kNoPosition : end};
}

// Number of visible query-key pairs in a sequence of t tokens; pairs on the diagonal count half, so it is t^2 / 2
// without a pattern.
inline double visible_pairs(const SparsePattern& p, int64_t t) {
  const double tokens = double(t);
  if (p.group == 0 || p.group >= t) return tokens * tokens / 2;
  const int64_t groups = t / p.group;
  const double n = double(groups), g = double(p.group), rest = double(t - groups * p.group);
  return n * g * g / 2 + rest * rest / 2 + double(p.summary) * (g * n * (n - 1) / 2 + n * rest);
}

}  // namespace athanor
