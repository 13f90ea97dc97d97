// Context parallelism that gathers no keys: each rank keeps its own keys and values, and in each hop gets those of one
// other rank, of the rank h before it, while it computes with the ones before [Liu et al. 2023, "Ring Attention with
// Blockwise Transformers for Near-Infinite Context"]. They come from the rank that has them, not from a neighbour that
// passes them on: the same bytes, but with a window nobody gets pieces that none of its queries see, and gradients of
// keys need one hop back. Pieces are those of nn/context.h.
#pragma once
#include <array>
#include <vector>

#include "ops/attention.h"

namespace athanor {

struct Ring {
  int64_t ranks = 1, rank = 0;
  int64_t piece_length = 0;  // tokens
  int64_t window = 0;        // of attention; 0: unlimited

  // Halves of a rank's rows, the first or the second pieces of all sequences: [begin, end) within [0, 2].
  struct Halves {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
  };
  // A half of this rank's queries, and one of the keys that it meets.
  struct Pair {
    int64_t q, k;
    double seen;  // share of the pairs of a query and a key that are visible without window and documents
  };

  int64_t before(int64_t hop) const { return (rank - hop + ranks) % ranks; }
  int64_t after(int64_t hop) const { return (rank + hop) % ranks; }
  // Which halves of rank `keys_of` some query of rank `queries_of` sees, by causal order and window.
  Halves seen(int64_t queries_of, int64_t keys_of) const;
  // Hops in which some rank receives keys, ascending; the same on all ranks, as are the launches of a hop.
  std::vector<int64_t> hops() const;
  // Sent in a hop by the rank that sends most: keys, or back in the same hop their gradients.
  int64_t most_halves(int64_t hop) const;
  // With this rank's own keys, and with those of another one.
  std::vector<Pair> own_pairs() const;
  std::vector<Pair> pairs(int64_t hop) const;
  // A table of spans for each of own_pairs(), then for each of the pairs of all hops(), of as many rows as `whole`,
  // which are spans of whole sequences. Queries and keys are counted from the starts of their halves.
  std::vector<Span> cut(const std::vector<Span>& whole) const;
  int64_t tables() const { return 3 + 2 * int64_t(hops().size()); }

 private:
  int64_t piece(int64_t of_rank, int64_t half) const { return half == 0 ? of_rank : 2 * ranks - 1 - of_rank; }
  bool sees(int64_t query_piece, int64_t key_piece) const;
  Span cut(const Span& whole, int64_t query_piece, int64_t key_piece) const;
};

}  // namespace athanor
