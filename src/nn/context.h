// Context parallelism. A sequence of T tokens is cut into 2 R consecutive pieces for R ranks; rank r has the pieces r
// and 2 R - 1 - r, so that under a causal mask all ranks have the same work [Llama Team 2024, "The Llama 3 Herd of
// Models", sec. 3.3.2]. A rank's rows are the first pieces of all sequences of the micro-batch, then the second pieces.
// Row-wise layers only need the positions of these rows; attention all-gathers the keys and values of all ranks, and
// reduce-scatters their gradients.
#pragma once
#include <vector>

#include "nn/layers.h"

namespace athanor {

// The pieces of one rank; whole sequences if ranks = 1.
struct ContextPart {
  int64_t ranks = 1, rank = 0;
  int64_t sequences = 0, length = 0;  // sequences per micro-batch; tokens per sequence, a multiple of 2 ranks

  int64_t all_rows() const { return sequences * length; }
  int64_t rows() const { return all_rows() / ranks; }
  // Returns, for each row of each rank in rank order, its index within whole sequences.
  std::vector<int32_t> rows_of_ranks() const;
  // Selects this rank's rows from values of the rows of whole sequences.
  template <class T>
  std::vector<T> cut(const std::vector<int32_t>& rows_of_ranks, const T* whole) const {
    std::vector<T> own;
    for (int64_t i = rank * rows(); i < (rank + 1) * rows(); ++i) own.push_back(whole[rows_of_ranks[size_t(i)]]);
    return own;
  }
  // Selects this rank's rows from `whole`, whose rows have row_bytes bytes.
  std::vector<std::byte> cut_rows(const std::vector<int32_t>& rows_of_ranks, const void* whole, size_t row_bytes) const;
  // Returns the spans of whole sequences for this rank's queries: one table for the first pieces and one for the
  // second, each with as many rows as `whole`. Queries are numbered from the start of the rank's first or second
  // pieces; keys are numbered as in whole sequences.
  std::vector<Span> cut(const std::vector<Span>& whole) const;
  int64_t piece_length() const { return length / (2 * ranks); }

 private:
  int64_t piece(int64_t of_rank, int64_t half) const { return half == 0 ? of_rank : 2 * ranks - 1 - of_rank; }
};

// Attention sinks [H]. add_sinks() applies AttentionSinks to attention's output and log-sum-exp; the other function
// computes the gradient of the sinks. Both do nothing if there are no sinks.
void add_sinks(Net, const Tensor& y, const Tensor& lse, Param sinks);
void add_sinks_gradient(Net, const Tensor& dy, const Tensor& y, const Tensor& lse, Param sinks);

// Subject of the collectives of a block: the block's name. Unit 0 is the embedding.
inline std::string block_subject(Net n, int layer) { return n.params.units().at(size_t(layer) + 1)->name; }

// Attention of this rank's queries to all keys. Forward all-gathers keys and values; backward gathers them once more
// and reduce-scatters their gradients.
Var attention_of_parts(Net, Var qkv, const Batch&, AttentionShape, int layer, Param sinks);
// Ring attention (nn/ring.h), in which no rank holds all keys: each rank sends its keys and values to the other ranks
// in forward and once more in backward, which returns their gradients.
Var attention_in_ring(Net, Var qkv, const Batch&, AttentionShape, int layer, Param sinks);

// Column blocks of packed qkv [N, (H + 2K) D].
inline Tensor queries(const Tensor& qkv, const AttentionShape& s) { return qkv.columns(0, s.heads * s.head_dim); }
inline Tensor keys_and_values(const Tensor& qkv, const AttentionShape& s) {
  return qkv.columns(s.heads * s.head_dim, qkv.cols());
}
inline Tensor keys(const Tensor& kv, const AttentionShape& s) { return kv.columns(0, s.kv_heads * s.head_dim); }
inline Tensor values(const Tensor& kv, const AttentionShape& s) {
  return kv.columns(s.kv_heads * s.head_dim, kv.cols());
}

// Returns the rows of the first (0) or the second (1) pieces of a tensor or span table.
inline Tensor half(const Tensor& t, int64_t which) {
  const int64_t rows = t.shape[0] / 2;
  return t.slice(which * rows, (which + 1) * rows);
}

}  // namespace athanor
