// Attention forward and backward, and what they share: checks of the span table, visible key ranges, and GEMMs of
// blocks.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/kernel.h"
#include "cpu/thread_pool.h"
#include "ops/attention.h"

namespace athanor {

// Attention on one table of kernels; cos_sin is ignored. attention_scratch() returns bytes.
size_t attention_scratch(const AttentionFwd&, const Kernels&, int threads);
void attention(const AttentionFwd&, const Kernels&, ThreadPool&, void* scratch);
size_t attention_scratch(const AttentionBwd&, const Kernels&, int threads);
void attention(const AttentionBwd&, const Kernels&, ThreadPool&, void* scratch);

constexpr int64_t kQueryBlock = 256;  // queries that share one packing of keys and values; a multiple of every nr
constexpr int64_t kKeyBlock = 128;    // keys processed at a time, so that the scores of one panel of queries stay in L1

struct KeyRange {
  int64_t first, last;  // keys [first, last) of a span; empty when first >= last
  int64_t size() const { return last > first ? last - first : 0; }
};

// The first contiguous range of keys, at or after key `from`, that at least one query in [q, q + n) of the span sees.
inline KeyRange next_keys(const Span& s, const AttentionShape& shape, int64_t q, int64_t n, int64_t from) {
  const int64_t query = int64_t(s.q_pos) + q;
  const int64_t end = std::min<int64_t>(query + n - s.k_pos, s.k_len);  // causal: no keys after the last query's own
  if (shape.window) return {std::max(from, query - s.k_pos - shape.window + 1), end};
  const PositionRange next = next_visible(shape.sparse, query, s.k_pos + from);
  return {next.first - s.k_pos, std::min(next.last - s.k_pos, end)};
}
// The smallest range within `keys` that contains all keys that queries in [q, q + n) see.
inline KeyRange keys_within(const Span& s, const AttentionShape& shape, int64_t q, int64_t n, KeyRange keys) {
  KeyRange all = next_keys(s, shape, q, n, keys.first);
  for (KeyRange next = all; next.size() > 0 && next.first < keys.last; next = next_keys(s, shape, q, n, next.last))
    all.last = next.last;
  all.last = std::min(all.last, keys.last);
  return all;
}

// Sets scores[key - keys.first, i] to -inf where query q + i (i < lanes) does not see the key.
void mask_scores(float* scores, int64_t stride, const Span&, const AttentionShape&, int64_t q, int64_t lanes,
                 KeyRange keys);

// Replaces s = q·k by the scores softcap * tanh(scale s / softcap). slope, optional: receives the derivatives of the
// scores by s. Both are [rows, cols], rows `stride` apart.
void cap_scores(float* s, float* slope, int64_t rows, int64_t cols, int64_t stride, const AttentionShape&);
// Factor that the scores still need: scale, or 1 after cap_scores(), which applies the scale.
inline float scale_of_scores(const AttentionShape& s) { return s.softcap > 0 ? 1.0f : s.scale; }

enum class SpanSide : uint8_t { queries, keys };

// The non-empty spans, cut into blocks of rows on one side.
struct SpanBlocks {
  struct Block {
    Span span;
    int64_t first, size;  // rows of the block within its span
  };
  std::vector<Span> spans;
  std::vector<int64_t> before;  // [spans + 1]: blocks of earlier spans
  int64_t rows_per_block;
  SpanSide side;
  int64_t count() const { return before.back(); }
  Block at(int64_t block) const;
};
SpanBlocks span_blocks(const Tensor& spans, SpanSide, int64_t rows_per_block);

// Throws if the table points outside the tensors, or if a row is in two spans on a side that is written.
void check_spans(const char* op, const Tensor& spans, int64_t query_rows, int64_t key_rows, bool keys_written);
// Rows of [0, rows) on that side that no span covers.
struct RowRange {
  int64_t begin, size;
};
std::vector<RowRange> uncovered_rows(const Tensor& spans, SpanSide, int64_t rows);
void zero_rows(const Tensor& t, const std::vector<RowRange>&, ThreadPool&);

// Whether attention multiplies bf16 pairs: q, k, v and dy unconverted, rows of k and v in place, probabilities and
// their gradients rounded to bf16.
inline bool attention_in_pairs(const Kernels& kern, const AttentionShape& s, const Tensor& k, const Tensor& v) {
  return kern.by_row_pairs && k.dtype == DType::bf16 && s.head_dim % 2 == 0 && k.stride() % 2 == 0 &&
         v.stride() % 2 == 0;
}
constexpr int64_t units_of(int64_t k, bool pairs) { return pairs ? (k + 1) / 2 : k; }

// c[rows, cols] (+)= A B in units (kernel.h). B is stored in panels of nr columns [k][nr], b_panel units apart.
struct BlockGemm {
  bool pairs;
  const float* a;  // A[i, k] at a[i * a_stride + k]
  int64_t a_stride;
  const float* b;
  int64_t b_stride = 0;  // units between rows of a panel; 0: nr
  int64_t b_panel;
  float* c;
  int64_t c_stride;
  int64_t rows, cols, k;
  bool add;
};
void multiply(const Kernels&, const BlockGemm&);

// Rows of one head of a tensor.
struct HeadRows {
  const Tensor& t;
  int64_t row, rows, col, cols;
};

// The rows of a HeadRows as units: in place if they are f32 or pairs, else converted to f32 in buffer.
struct Rows {
  const float* data;
  int64_t stride;
};
Rows rows_as_units(const Kernels&, const HeadRows&, float* buffer, bool pairs);

// Packs a HeadRows into panels of nr columns [ceil(cols / nr)][units of rows][nr], with zeros past the last column.
void rows_as_panels(const Kernels&, const HeadRows&, float* dst, bool pairs);

// Packs the transpose [cols, rows] of a HeadRows into panels of nr rows each [ceil(rows / nr)][units of cols][nr], with
// zeros past the last row.
void rows_as_lanes(const Kernels&, const HeadRows&, float* dst, bool pairs);

// Writes the transpose of keys' rows to dst [cols][kKeyBlock or, in pairs, kKeyBlock / 2 units], the left operand of
// GEMMs that sum over keys. units: the rows as rows_as_units() gives them; buffer: in pairs scratch of
// transpose_scratch() floats.
void keys_transposed(const Kernels&, const HeadRows&, const Rows& units, float* buffer, float* dst, bool pairs);
constexpr int64_t transpose_scratch(int64_t cols, int64_t nr, bool pairs) {
  return pairs ? kKeyBlock / 2 * round_up(cols, nr) : 0;
}
constexpr int64_t transposed_stride(bool pairs) { return pairs ? kKeyBlock / 2 : kKeyBlock; }  // in units

// Stores the transpose of x [cols][nr], times factor[i] (null: 1), in the rows, at most nr of them; buffer: scratch
// [nr][round_up(cols, nr)].
void store_transposed(const Kernels&, const HeadRows&, const float* x, const float* factor, float* buffer);

// Stores x[i, j] * factor[i] in the rows (factor null: 1), rounded to the tensor's dtype.
void store_rows(const HeadRows&, const float* x, int64_t stride, const float* factor);

}  // namespace athanor
