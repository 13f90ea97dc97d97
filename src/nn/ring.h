// Ring attention: context parallelism that does not gather keys. Each rank keeps its own keys and values; in hop h it
// receives those of the rank h places before it, while it computes with the previous ones [Liu et al. 2023, "Ring
// Attention with Blockwise Transformers for Near-Infinite Context"]. Keys and values come directly from their owner,
// not through neighbours: the bytes are the same, but with a sliding window no rank gets pieces that its queries do not
// see, and gradients of keys return in one hop. Pieces are defined in nn/context.h.
#pragma once
#include <array>
#include <vector>

#include "ops/attention.h"

namespace athanor {

struct Ring {
  int64_t ranks = 1, rank = 0;
  int64_t piece_length = 0;  // tokens
  int64_t window = 0;        // widest sliding window of the layers that share the ring, in tokens; 0: unlimited

  // Range [begin, end) of halves, within [0, 2]. A half of a rank's rows is the first or the second pieces of all
  // sequences.
  struct Halves {
    int64_t begin = 0, end = 0;
    int64_t size() const { return end - begin; }
  };
  // A half of this rank's queries, and a half of the keys that they see.
  struct Pair {
    int64_t q, k;
    double seen;  // fraction of query-key pairs that are visible, ignoring window and documents
  };

  int64_t before(int64_t hop) const { return (rank - hop + ranks) % ranks; }
  int64_t after(int64_t hop) const { return (rank + hop) % ranks; }
  // Returns the halves of rank `keys_of` that any query of rank `queries_of` sees, by causal order and window.
  Halves seen(int64_t queries_of, int64_t keys_of) const;
  // Hops in which some rank receives keys, ascending. All ranks have the same hops, and the same launches in each hop.
  std::vector<int64_t> hops() const;
  // Max number of halves of keys that any rank sends in a hop; their gradients return in the same hop.
  int64_t most_halves(int64_t hop) const;
  // Return pairs with this rank's own keys, and with keys received in a hop.
  std::vector<Pair> own_pairs() const;
  std::vector<Pair> pairs(int64_t hop) const;
  // Returns span tables, one for each of own_pairs(), then one for each of pairs(h) for all hops(); each has as many
  // rows as `whole`, the spans of whole sequences. Queries and keys are numbered from the starts of their halves.
  std::vector<Span> cut(const std::vector<Span>& whole) const;
  int64_t tables() const { return 3 + 2 * int64_t(hops().size()); }

 private:
  int64_t piece(int64_t of_rank, int64_t half) const { return half == 0 ? of_rank : 2 * ranks - 1 - of_rank; }
  bool sees(int64_t query_piece, int64_t key_piece) const;
  Span cut(const Span& whole, int64_t query_piece, int64_t key_piece) const;
};

}  // namespace athanor
