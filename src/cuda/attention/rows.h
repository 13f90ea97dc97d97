// Shared by all attention kernels: arguments, and the visible rows of the other side (keys for a query, queries for a
// key) of each row. Kernels for sparse patterns are separate template instances, so that they cost the others nothing.
// Each block reads the span table from device memory, so a captured graph can be replayed with other spans.
#pragma once
#include <climits>
#include <type_traits>

#include "cuda/host_tools.h"
#include "cuda/scratch.h"
#include "ops/attention.h"
namespace athanor::cuda::attention {

constexpr float kLog2e = 1.4426950408889634f;

struct SpanTable {
  const int32_t* words;  // [count, 6]
  int count;
  int queries, keys;  // rows of the tensors; accesses stay within them for any table
  int64_t window;
  SparsePattern sparse;
};

template <class T>
struct Inputs {
  const T *q, *k, *v;  // rows q_stride, k_stride, v_stride apart
  int64_t q_stride, k_stride, v_stride;
  SpanTable spans;
  int heads, group, dim;  // group: query heads per key head
  float scale;
  float softcap;  // soft-cap of scores; 0: none
  bool vectors;   // every row starts on a 16-byte boundary
};
template <class T>
struct Forward {
  Inputs<T> in;
  T* y;            // [Nq, H D]
  float* lse;      // [Nq, H]
  float* top;      // [H] maximum score of each head; null: not wanted
  uint32_t* amax;  // amax of y, as float bits; null: not wanted
};
// RoPE angles by which dq and dk are rotated back after rounding (AttentionBwd::cos_sin). Null: no rotation.
struct Angles {
  const float* cos_sin;  // [P, D]
  const int* positions;  // [Nq] = [Nk]
};
template <class T>
struct Backward {
  Inputs<T> in;
  T *dq, *dk, *dv;
  int64_t dq_stride, dk_stride, dv_stride;
  const T* dy;              // [Nq, H D]
  const QueryStats* stats;  // [H, stats_rows(Nq)]
  Angles angles;
};

template <class Op>
bool rows_are_aligned(const Op& op) {
  bool aligned = true;
  Op copy = op;
  for (const Field& f : copy.fields())
    if (f.t != &copy.lse && f.t->shape.rank > 1 && f.t->dtype == op.q.dtype)
      aligned &= reinterpret_cast<uintptr_t>(f.t->data) % 16 == 0 && f.t->stride() * size_of(f.t->dtype) % 16 == 0;
  return aligned && op.shape.head_dim * int64_t(size_of(op.q.dtype)) % 16 == 0;
}

template <class T, class Op>
Inputs<T> inputs_of(const Op& op) {
  constexpr int64_t kRows = 1 << 30;  // limit so that 2 * row, the index of a row's statistics, fits in an int
  const AttentionShape& s = op.shape;
  CHECK(op.q.rows() < kRows && op.k.rows() < kRows && op.spans.rows() < kRows, Op::kName, ": ", op.q.rows(),
        " queries, ", op.k.rows(), " keys, ", op.spans.rows(), " spans; the limit is ", kRows);
  CHECK(op.q.cols() < INT_MAX, Op::kName, ": q ", op.q.shape, " is beyond 32-bit columns");
  return {data<T>(op.q),
          data<T>(op.k),
          data<T>(op.v),
          op.q.stride(),
          op.k.stride(),
          op.v.stride(),
          {data<int32_t>(op.spans),
           static_cast<int>(op.spans.rows()),
           static_cast<int>(op.q.rows()),
           static_cast<int>(op.k.rows()),
           std::min<int64_t>(s.window, int64_t{1} << 40),
           // All groups longer than the number of rows are equivalent.
           {std::min(s.sparse.group, kRows), std::min(s.sparse.summary, kRows - 1)}},
          static_cast<int>(s.heads),
          static_cast<int>(s.heads / s.kv_heads),
          static_cast<int>(s.head_dim),
          s.scale,
          s.softcap,
          rows_are_aligned(op)};
}

// Raises the maximum score of a head to that of a warp's rows. Non-negative floats sort like signed integers, negative
// floats in the reverse order of unsigned integers; -0 becomes 0 first. The result does not depend on the order of
// updates.
__device__ __forceinline__ void raise_top(float* top, float score) {
  for (int lane = 1; lane < 32; lane *= 2) score = fmaxf(score, __shfl_xor_sync(~0u, score, lane));
  if (threadIdx.x % 32 != 0) return;
  score += 0.f;
  if (score >= 0.f) {
    atomicMax(reinterpret_cast<int*>(top), static_cast<int>(__float_as_uint(score)));
  } else {
    atomicMin(reinterpret_cast<unsigned*>(top), __float_as_uint(score));
  }
}

// ---- visibility: a query sees an interval of key rows, with a sparse pattern a subset of it; a key is always seen by
// an interval of query rows

enum class Side { kQueries, kKeys };
struct Seen {
  int first, last;  // rows [first, last) of the other side; empty is {0, 0}
};
// The keys that a query sees in a sparse pattern: within rows [first, last) those from `own` on, where its group
// begins, and the last `summary` of each earlier `group` rows.
struct SparseSeen {
  int first, last, own, group, summary, unused;
};
template <Side S, bool Sparse>
using SeenBy = std::conditional_t<Sparse && S == Side::kQueries, SparseSeen, Seen>;
constexpr int kNone = INT_MAX;

// The rows of the other side that each row of a tile sees; in shared memory.
template <int Rows, class Row = Seen>
struct Sight {
  Row seen[Rows];
  int spans[Rows];  // numbers of the spans that have rows in the tile
  int count;
  int last;  // maximum of seen[].last
};

__device__ __forceinline__ Seen load_seen(const Seen* p) {
  const uint2 raw = ld8(p);
  return {static_cast<int>(raw.x), static_cast<int>(raw.y)};
}

__device__ __forceinline__ SparseSeen load_seen(const SparseSeen* p) {
  const Seen ends = load_seen(reinterpret_cast<const Seen*>(p));
  const uint2 own = ld8(&p->own), summary = ld8(&p->summary);
  return {ends.first, ends.last, static_cast<int>(own.x), static_cast<int>(own.y), static_cast<int>(summary.x), 0};
}
__device__ __forceinline__ void store_seen(Seen* p, const Seen& s) { st8(p, make_uint2(s.first, s.last)); }
__device__ __forceinline__ void store_seen(SparseSeen* p, const SparseSeen& s) {
  st8(&p->first, make_uint2(s.first, s.last));
  st8(&p->own, make_uint2(s.own, s.group));
  st8(&p->summary, make_uint2(s.summary, 0));
}

// sees(): whether the row sees this one. next_row(): the first row >= `from` that it sees, given s.last > from; kNone
// if there is none. left_in_group(): rows between a row before s.own and the end of its group.
__device__ __forceinline__ bool sees(Seen s, int row) { return row >= s.first && row < s.last; }
__device__ __forceinline__ int next_row(Seen s, int from) { return max(s.first, from); }
__device__ __forceinline__ int left_in_group(SparseSeen s, int row) { return (s.own - 1 - row) % s.group; }
__device__ __forceinline__ bool sees(SparseSeen s, int row) {
  return row >= s.first && row < s.last && (row >= s.own || left_in_group(s, row) < s.summary);
}
__device__ __forceinline__ int next_row(SparseSeen s, int from) {
  int row = max(s.first, from);
  if (row < s.own) row += max(left_in_group(s, row) + 1 - s.summary, 0);
  return row < s.last ? row : kNone;
}

template <Side S, bool Sparse>
__device__ __forceinline__ SeenBy<S, Sparse> seen_by(const SpanTable& t, const int32_t* span, int row) {
  const uint2 queries = ld8(span), keys = ld8(span + 2), positions = ld8(span + 4);
  const int64_t q_begin = static_cast<int>(queries.x), k_begin = static_cast<int>(keys.x);
  const int64_t ahead = int64_t{static_cast<int>(positions.x)} - static_cast<int>(positions.y);
  int64_t first, last, begin, length, rows;
  [[maybe_unused]] int64_t group = 0;  // the first key of the query's own group
  if constexpr (S == Side::kQueries) {
    const int64_t own = row - q_begin + ahead;  // the key at the query's own position
    first = t.window ? own - t.window + 1 : 0, last = own + 1;
    if constexpr (Sparse) {
      group = own - (row - q_begin + static_cast<int>(positions.x)) % t.sparse.group;
      if (t.sparse.summary == 0) first = group;
    }
    begin = k_begin, length = static_cast<int>(keys.y), rows = t.keys;
  } else {
    const int64_t own = row - k_begin - ahead;  // the query at the key's own position
    first = own, last = t.window ? own + t.window : INT_MAX;
    if constexpr (Sparse) {
      const int64_t position = row - k_begin + static_cast<int>(positions.y);
      last = min(seen_until(t.sparse, position) - static_cast<int>(positions.x), int64_t{INT_MAX});
    }
    begin = q_begin, length = static_cast<int>(queries.y), rows = t.queries;
  }
  first = max(begin + max(first, int64_t{0}), int64_t{0});
  last = min(begin + min(last, length), rows);
  const Seen seen = first < last ? Seen{static_cast<int>(first), static_cast<int>(last)} : Seen{0, 0};
  if constexpr (Sparse && S == Side::kQueries) {
    const auto own = static_cast<int>(max(min(begin + group, int64_t{INT_MAX}), int64_t{0}));
    return {seen.first, seen.last, own, static_cast<int>(t.sparse.group), static_cast<int>(t.sparse.summary), 0};
  } else {
    return seen;
  }
}

// Fills `sight` for the tile that starts at first_row. All threads of the block call it; it ends with a barrier.
template <Side S, bool Sparse = false, int Rows>
__device__ __forceinline__ void look(Sight<Rows, SeenBy<S, Sparse>>& sight, const SpanTable& t, int first_row) {
  constexpr int kWord = S == Side::kQueries ? 0 : 2;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (thread == 0) sight.count = sight.last = 0;
  __syncthreads();
  for (int s = thread; s < t.count; s += threads) {
    const uint2 range = ld8(t.words + s * 6 + kWord);
    const int64_t begin = static_cast<int>(range.x), end = begin + static_cast<int>(range.y);
    if (begin >= end || begin >= first_row + Rows || end <= first_row) continue;
    const int slot = atomicAdd(&sight.count, 1);  // order is irrelevant: spans have no common rows
    if (slot < Rows) sight.spans[slot] = s;
  }
  __syncthreads();
  const int count = min(sight.count, Rows);
  for (int r = thread; r < Rows; r += threads) {
    SeenBy<S, Sparse> seen{0, 0};
    for (int i = 0; i < count; ++i) {
      const int32_t* span = t.words + sight.spans[i] * 6;
      const uint2 range = ld8(span + kWord);
      const int64_t index = int64_t{first_row} + r - static_cast<int>(range.x);
      if (index >= 0 && index < static_cast<int>(range.y)) seen = seen_by<S, Sparse>(t, span, first_row + r);
    }
    store_seen(&sight.seen[r], seen);
    atomicMax(&sight.last, seen.last);
  }
  __syncthreads();
}

// The first row >= `from` that some row of the tile sees; kNone if there is none. Called by full warps.
template <int Rows, class Row>
__device__ __forceinline__ int next_seen(const Row* rows, int from) {
  int next = kNone;
#pragma unroll
  for (int r = static_cast<int>(threadIdx.x) % 32; r < Rows; r += 32) {
    const Row seen = load_seen(rows + r);
    if (seen.last > from) next = min(next, next_row(seen, from));
  }
  return __reduce_min_sync(~0u, next);
}

// one_sees(): whether a row of the warp sees part of [first, last). all_see(): whether all its rows see all of it.
template <int Rows>
__device__ __forceinline__ bool one_sees(const Seen* rows, int first, int last) {
  const Seen seen = load_seen(rows + threadIdx.x % Rows);
  return __any_sync(~0u, seen.first < last && seen.last > first);
}
template <int Rows>
__device__ __forceinline__ bool all_see(const Seen* rows, int first, int last) {
  const Seen seen = load_seen(rows + threadIdx.x % Rows);
  return __all_sync(~0u, seen.first <= first && seen.last >= last);
}
template <int Rows>
__device__ __forceinline__ bool one_sees(const SparseSeen* rows, int first, int last) {
  const SparseSeen seen = load_seen(rows + threadIdx.x % Rows);
  return __any_sync(~0u, seen.last > first && next_row(seen, first) < last);
}
template <int Rows>
__device__ __forceinline__ bool all_see(const SparseSeen* rows, int first, int last) {
  const SparseSeen seen = load_seen(rows + threadIdx.x % Rows);
  bool all = seen.first <= first && seen.last >= last;
  if (all && first < seen.own) {
    const int left = left_in_group(seen, first);
    all = left < seen.summary && (last - first <= left + 1 || first + left + 1 == seen.own);
  }
  return __all_sync(~0u, all);
}
}  // namespace athanor::cuda::attention
