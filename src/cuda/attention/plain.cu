// Attention forward and backward by multiply-add in f32, for f32 tensors and for head sizes and strides that the
// tensor-core kernels do not support. Formulas as in forward.cu and backward.cu, but weights are not rounded, and
// scores may be soft-capped. Layout: a block takes 64 rows of a head and 64 output columns, a thread 8 x 8 scores, then
// 8 x 8 sums; warps exchange weights through shared memory. Wider heads recompute scores for each 64 columns: meant for
// tests and small models. Deterministic: all sums are over the other side's rows in order.
#include "cuda/attention/plain.h"
#include "cuda/vectors.h"

namespace athanor::cuda::attention {
namespace {

constexpr int kRows = 64, kThreads = 64, kPart = 8;  // kPart: rows and columns per thread
constexpr int kPitch = kRows + 4;                    // row length of weights [other row][own row]
constexpr int kSlice = 64;                           // output columns per block

using Square = float[kPart][kPart];

// A thread's first row in the block's tile, and its first row of the other side's tile or column of the slice.
struct Place {
  int rows, others;
};
__device__ __forceinline__ Place my_place() {
  const int thread = static_cast<int>(threadIdx.x);
  return {thread / 8 * kPart, thread % 8 * kPart};
}

// Rows of one head of a tensor, from `first` up to `limit`.
template <class T>
struct HeadRows {
  const T* data;
  int64_t stride;
  int first, limit;
};

// s[i][j] = row i of a times row j of b; 0 if a row does not exist.
template <class T>
__device__ __forceinline__ void dots(Square& s, const HeadRows<T>& a, const HeadRows<T>& b, int dim, bool vectors) {
  for (auto& row : s)
    for (float& x : row) x = 0;
  for (int d = 0; d < dim; d += 4) {
    float x[kPart][4] = {};
#pragma unroll
    for (int i = 0; i < kPart; ++i)
      if (a.first + i < a.limit) load_chunk(x[i], a.data + (a.first + i) * a.stride, d, dim, vectors);
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
      float y[4] = {};
      if (b.first + j < b.limit) load_chunk(y, b.data + (b.first + j) * b.stride, d, dim, vectors);
#pragma unroll
      for (int i = 0; i < kPart; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[i][j] = fmaf(x[i][e], y[e], s[i][j]);
      }
    }
  }
}

// sums += the weights of this thread's rows times columns of `rows`, over the other side's rows [first, last).
template <class T>
__device__ __forceinline__ void gather(Square& sums, const float* weights, const HeadRows<T>& rows, int first, int last,
                                       int column, int dim, bool vectors) {
  if (column >= dim) return;
  for (int j = max(first, rows.first); j < min(last, min(rows.first + kRows, rows.limit)); ++j) {
    float w[kPart], x[2][4] = {};
    load_chunk(w, weights + (j - rows.first) * kPitch, 0, kPart, true);
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (column + 4 * c < dim) load_chunk(x[c], rows.data + j * rows.stride, column + 4 * c, dim, vectors);
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
#pragma unroll
      for (int c = 0; c < kPart; ++c) sums[i][c] = fmaf(w[i], x[c / 4][c % 4], sums[i][c]);
    }
  }
}

// Shares this thread's weights with the threads of the same rows, all in its warp. Call __syncwarp before and after it.
__device__ __forceinline__ void share(float* weights, const Square& w, Place at) {
#pragma unroll
  for (int j = 0; j < kPart; ++j) {
#pragma unroll
    for (int i = 0; i < kPart; i += 4) {
      const float four[4] = {w[i][j], w[i + 1][j], w[i + 2][j], w[i + 3][j]};
      store_vector(weights + (at.others + j) * kPitch + at.rows + i, four);
    }
  }
}

template <class T>
__device__ __forceinline__ void store(T* tensor, int64_t stride, int first, int limit, int column, int dim,
                                      const Square& sums, const float (&factor)[kPart]) {
  for (int i = 0; i < kPart; ++i) {
    if (first + i >= limit) break;
    for (int c = 0; c < kPart; ++c)
      if (column + c < dim) tensor[(first + i) * stride + column + c] = from_float<T>(sums[i][c] * factor[i]);
  }
}

// Union of the intervals that this thread's rows see.
template <class Row>
__device__ __forceinline__ Seen together(const Row* rows) {
  Seen all{kNone, 0};
  for (int i = 0; i < kPart; ++i) {
    const Row seen = load_seen(rows + i);
    if (seen.last > seen.first) all = {min(all.first, seen.first), max(all.last, seen.last)};
  }
  return all;
}

// The score for a dot product qk, and its derivative with respect to qk, divided by scale.
struct Score {
  float y, slope;
};
__device__ __forceinline__ Score score_of(float qk, float scale, float softcap) {
  const float y = qk * scale;
  if (softcap == 0) return {y, 1};
  const float t = tanhf(y / softcap);
  return {softcap * t, (1 - t) * (1 + t)};
}

// ---- kernels; grid: (tile and head, slice of columns)

template <bool Sparse, class T>
__global__ void __launch_bounds__(kThreads) attend(Forward<T> a) {
  ptx::wait_for_earlier_kernels();
  using Row = SeenBy<Side::kQueries, Sparse>;
  using Sights = Sight<kRows, Row>;
  SHARED(Sights, sight);
  SHARED(float, weights, [kRows * kPitch]);
  const Inputs<T>& in = a.in;
  const int head = static_cast<int>(blockIdx.x) % in.heads, first = static_cast<int>(blockIdx.x) / in.heads * kRows;
  const int kv = head / in.group * in.dim;
  const Place at = my_place();
  const int row = first + at.rows, column = static_cast<int>(blockIdx.y) * kSlice + at.others;
  look<Side::kQueries, Sparse>(sight, in.spans, first);
  const Row* seen = sight.seen + at.rows;
  const Seen mine = together(seen);
  float top[kPart], sum[kPart] = {}, factor[kPart];
  for (float& t : top) t = -INFINITY;
  Square y = {};
  for (int start = next_seen<kRows>(sight.seen, 0); start != kNone;
       start = next_seen<kRows>(sight.seen, start + kRows)) {
    const int key = start + at.others;
    Square s = {};
    if (key < mine.last && key + kPart > mine.first)
      dots(s, HeadRows<T>{in.q + head * in.dim, in.q_stride, row, in.spans.queries},
           HeadRows<T>{in.k + kv, in.k_stride, key, sight.last}, in.dim, in.vectors);
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      const Row now = load_seen(seen + i);
      float most = top[i], total = 0;
#pragma unroll
      for (int j = 0; j < kPart; ++j) {
        s[i][j] = sees(now, key + j) ? score_of(s[i][j], in.scale, in.softcap).y : -INFINITY;
        most = fmaxf(most, s[i][j]);
      }
      for (int lane = 1; lane < 8; lane *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, lane));
      const float base = most == -INFINITY ? 0.f : most, shrink = expf(top[i] - base);
      top[i] = most;
#pragma unroll
      for (int j = 0; j < kPart; ++j) total += s[i][j] = expf(s[i][j] - base);
      sum[i] = sum[i] * shrink + total;
#pragma unroll
      for (float& x : y[i]) x *= shrink;
    }
    __syncwarp();  // reads of the previous tile's weights are done
    share(weights, s, at);
    __syncwarp();
    gather(y, weights + at.rows, HeadRows<T>{in.v + kv, in.v_stride, start, sight.last}, mine.first, mine.last, column,
           in.dim, in.vectors);
  }
  for (int i = 0; i < kPart; ++i) {
    for (int lane = 1; lane < 8; lane *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], lane);
    factor[i] = sum[i] == 0 ? 0.f : 1.f / sum[i];
    if (column == 0 && row + i < in.spans.queries)
      a.lse[static_cast<int64_t>(row + i) * in.heads + head] = top[i] + logf(sum[i]);
  }
  if (a.top && blockIdx.y == 0) {
    float most = -INFINITY;
    for (const float t : top) most = fmaxf(most, t);
    raise_top(a.top + head, most);
  }
  const int64_t width = static_cast<int64_t>(in.heads) * in.dim;
  store(a.y + head * in.dim, width, row, in.spans.queries, column, in.dim, y, factor);
}

// Computes the weights p, or ds = p (dp - dy·y) times the slope of a soft-capped score, for a thread's own rows and
// rows of the other side. stats: statistics of the queries; Own: the side of the thread's own rows.
template <Side Own, bool Ds, class Row>
__device__ __forceinline__ void weigh(Square& s, const Square& dp, const Row* seen, int own, int other,
                                      const QueryStats* stats, int queries, float scale, float softcap) {
#pragma unroll
  for (int i = 0; i < kPart; ++i) {
    const Row now = load_seen(seen + i);
#pragma unroll
    for (int j = 0; j < kPart; ++j) {
      const int query = Own == Side::kQueries ? own + i : other + j;
      if (!sees(now, other + j) || query >= queries) {
        s[i][j] = 0;
        continue;
      }
      const QueryStats q = stats[query];
      float slope = 1;
      if (softcap == 0) {
        s[i][j] = exp2f(fmaf(s[i][j], scale * kLog2e, -q.lse));
      } else {
        const Score score = score_of(s[i][j], scale, softcap);
        s[i][j] = exp2f(fmaf(score.y, kLog2e, -q.lse)), slope = score.slope;
      }
      if constexpr (Ds) s[i][j] *= (dp[i][j] - q.dy_by_y) * slope;
    }
  }
}

enum class Gradient { kQueries, kKeys, kValues };

// Operands of the two dot products of a score: rows of the gradient's own side and of the other side.
template <Gradient G, class T>
struct Operands {
  HeadRows<T> own, own_dp, other, other_dp;  // s = own other^T, dp = own_dp other_dp^T
  __device__ __forceinline__ Operands(const Backward<T>& a, int head, int row, int start, int limit) {
    const Inputs<T>& in = a.in;
    const int64_t width = static_cast<int64_t>(in.heads) * in.dim;
    const T *q = in.q + head * in.dim, *dy = a.dy + head * in.dim;
    const T *k = in.k + head / in.group * in.dim, *v = in.v + head / in.group * in.dim;
    if constexpr (G == Gradient::kQueries) {
      own = {q, in.q_stride, row, in.spans.queries}, own_dp = {dy, width, row, in.spans.queries};
      other = {k, in.k_stride, start, limit}, other_dp = {v, in.v_stride, start, limit};
    } else {
      own = {k, in.k_stride, row, in.spans.keys}, own_dp = {v, in.v_stride, row, in.spans.keys};
      other = {q, in.q_stride, start, limit}, other_dp = {dy, width, start, limit};
    }
  }
};

template <Gradient G, bool Sparse, class T>
__global__ void __launch_bounds__(kThreads) differentiate(Backward<T> a) {
  ptx::wait_for_earlier_kernels();
  constexpr Side kOwn = G == Gradient::kQueries ? Side::kQueries : Side::kKeys;
  using Row = SeenBy<kOwn, Sparse>;
  using Sights = Sight<kRows, Row>;
  SHARED(Sights, sight);
  SHARED(float, weights, [kRows * kPitch]);
  const Inputs<T>& in = a.in;
  const int group = kOwn == Side::kKeys ? in.group : 1, heads = in.heads / group;  // query heads per head of this side
  const int own_head = static_cast<int>(blockIdx.x) % heads, first = static_cast<int>(blockIdx.x) / heads * kRows;
  const Place at = my_place();
  const int row = first + at.rows, column = static_cast<int>(blockIdx.y) * kSlice + at.others;
  look<kOwn, Sparse>(sight, in.spans, first);
  const Row* seen = sight.seen + at.rows;
  const Seen mine = together(seen);
  Square sums = {};
  for (int head = own_head * group; head < (own_head + 1) * group; ++head) {
    for (int start = next_seen<kRows>(sight.seen, 0); start != kNone;
         start = next_seen<kRows>(sight.seen, start + kRows)) {
      Operands<G, T> x(a, head, row, start, sight.last);
      const HeadRows<T> gathered = G == Gradient::kValues ? x.other_dp : x.other;
      x.other.first += at.others, x.other_dp.first += at.others;
      Square s = {}, dp = {};
      if (x.other.first < mine.last && x.other.first + kPart > mine.first) {
        dots(s, x.own, x.other, in.dim, in.vectors);
        if constexpr (G != Gradient::kValues) dots(dp, x.own_dp, x.other_dp, in.dim, in.vectors);
        weigh<kOwn, G != Gradient::kValues>(s, dp, seen, row, x.other.first,
                                            a.stats + head * stats_rows(in.spans.queries), in.spans.queries, in.scale,
                                            in.softcap);
      }
      __syncwarp();  // reads of the previous tile's weights are done
      share(weights, s, at);
      __syncwarp();
      gather(sums, weights + at.rows, gathered, mine.first, mine.last, column, in.dim, in.vectors);
    }
  }
  float factor[kPart];
  for (float& f : factor) f = G == Gradient::kValues ? 1.f : in.scale;
  T* out = G == Gradient::kQueries ? a.dq : G == Gradient::kKeys ? a.dk : a.dv;
  const int64_t stride = G == Gradient::kQueries ? a.dq_stride : G == Gradient::kKeys ? a.dk_stride : a.dv_stride;
  store(out + own_head * in.dim, stride, row, kOwn == Side::kQueries ? in.spans.queries : in.spans.keys, column, in.dim,
        sums, factor);
}

template <class A>
void launch_slices(void (*kernel)(A), int rows, int heads, const A& a, cudaStream_t stream) {
  if (rows == 0) return;
  const dim3 grid(grid_size(div_ceil<int64_t>(rows, kRows) * heads), grid_size(div_ceil(a.in.dim, kSlice)));
  CUDA_CHECK(launch(kernel, {grid, dim3(kThreads), 0, stream}, a));
}
}  // namespace

template <class T>
void attend_plainly(const Forward<T>& a, cudaStream_t stream) {
  const auto kernel = a.in.spans.sparse.group > 0 ? attend<true, T> : attend<false, T>;
  launch_slices(kernel, a.in.spans.queries, a.in.heads, a, stream);
}
template <class T>
void differentiate_plainly(const Backward<T>& a, cudaStream_t stream) {
  const int kv_heads = a.in.heads / a.in.group;
  const auto launch_all = [&]<bool Sparse>() {
    launch_slices(differentiate<Gradient::kQueries, Sparse, T>, a.in.spans.queries, a.in.heads, a, stream);
    launch_slices(differentiate<Gradient::kKeys, Sparse, T>, a.in.spans.keys, kv_heads, a, stream);
    launch_slices(differentiate<Gradient::kValues, Sparse, T>, a.in.spans.keys, kv_heads, a, stream);
  };
  a.in.spans.sparse.group > 0 ? launch_all.template operator()<true>() : launch_all.template operator()<false>();
}
template void attend_plainly(const Forward<float>&, cudaStream_t);
template void attend_plainly(const Forward<bf16>&, cudaStream_t);
template void attend_plainly(const Forward<fp16>&, cudaStream_t);
template void differentiate_plainly(const Backward<float>&, cudaStream_t);
template void differentiate_plainly(const Backward<bf16>&, cudaStream_t);
template void differentiate_plainly(const Backward<fp16>&, cudaStream_t);
}  // namespace athanor::cuda::attention
