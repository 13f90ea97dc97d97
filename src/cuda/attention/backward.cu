// Attention backward on tensor cores; scores are recomputed from q, k and the stored lse [Dao et al. 2022, app. B.4]:
//   p = exp(scale q k^T - lse),  ds = p (dy v^T - rowsum(dy y)),
//   dv = p^T dy,  dk = scale ds^T q,  dq = scale ds k;  p and ds are rounded to the inputs' type before these GEMMs.
// Deterministic without atomics: one kernel takes tiles of keys and iterates over the queries that see them, head by
// head of the group; another takes tiles of queries and iterates over their keys. Scores are therefore computed twice:
// seven GEMMs, not five.
// Layout: a warp owns 16 R rows of its side, whose sums stay in registers; tiles of the other side pass through two
// stages of shared memory. Compute bound. Not timed on a GPU yet.
#include "cuda/attention/attention.h"
#include "cuda/attention/plain.h"
#include "cuda/attention/tiles.h"
#include "cuda/attention/wgmma.h"
#include "cuda/kernels.h"
#include "cuda/vectors.h"

namespace athanor::cuda {
namespace attention {
namespace {

// Sizes chosen to fit the 99 KiB of shared memory of the smallest GPUs, and the registers.
template <int Dim, int Warps, int RowTiles, int Others>
struct Tiles {
  static constexpr int D = Dim, kWarps = Warps, R = RowTiles, N = Others;  // N: rows per tile of the other side
  static constexpr int kThreads = kWarps * 32, kRows = kWarps * 16 * R;
};
template <int D>
struct KeyTiles : Tiles<D, D <= 128 ? 4 : 2, D <= 64 ? 2 : 1, D <= 128 ? 32 : 16> {};
template <int D>
struct QueryTiles : Tiles<D, D <= 128 ? 4 : 2, D <= 96 ? 2 : 1, D <= 128 ? 32 : 16> {};

// A pipeline stage: tiles of the other side's two tensors, and the statistics if the other side is the queries.
template <class T, class Tile>
struct Stage {
  T a[Tile::N * kPitch<Tile::D>], b[Tile::N * kPitch<Tile::D>];
  QueryStats stats[Tile::N];
};
template <class T, class Tile>
struct Shared {
  T a[Tile::kRows * kPitch<Tile::D>], b[Tile::kRows * kPitch<Tile::D>];  // rows of the block's own side
  Stage<T, Tile> stages[2];
};

// ---- statistics: lse and dy·y of each row and head, by eight threads

template <class T>
struct StatsRows {
  QueryStats* stats;  // [H, stats_rows(Nq)]
  const T *dy, *y;    // [Nq, H D]
  const float* lse;   // [Nq, H]
  int64_t rows;
  int heads, dim;
  bool vectors;
};
constexpr int kStatsThreads = 256, kStatsLanes = 8;

template <class T>
__global__ void __launch_bounds__(kStatsThreads) query_stats(StatsRows<T> a) {
  ptx::wait_for_earlier_kernels();
  constexpr int E = kVector<T>;
  const int64_t item = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kStatsLanes;
  const bool exists = item < a.rows * a.heads;
  const int lane = static_cast<int>(threadIdx.x) % kStatsLanes;
  float sum = 0;
  for (int c = lane * E; exists && c < a.dim; c += kStatsLanes * E) {
    float dy[E], y[E];
    load_chunk(dy, a.dy + item * a.dim, c, a.dim, a.vectors);
    load_chunk(y, a.y + item * a.dim, c, a.dim, a.vectors);
#pragma unroll
    for (int i = 0; i < E; ++i) sum += dy[i] * y[i];
  }
#pragma unroll
  for (int offset = kStatsLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (!exists || lane != 0) return;
  const float lse = a.lse[item];
  // A query without keys has lse = -inf, which would give NaN; with any finite value its weights are 0.
  a.stats[item % a.heads * stats_rows(a.rows) + item / a.heads] = {lse == -INFINITY ? 0.f : lse * kLog2e, sum};
}

// ---- keys: dk and dv

template <class T, class Tile>
__device__ __forceinline__ void load_queries(Stage<T, Tile>& stage, const Backward<T>& a, int head, int start,
                                             int limit) {
  const Inputs<T>& in = a.in;
  const int64_t width = static_cast<int64_t>(in.heads) * in.dim;
  load_tile<Tile::N, Tile::D>(stage.a, in.q + head * in.dim, in.q_stride, start, limit, in.dim);
  load_tile<Tile::N, Tile::D>(stage.b, a.dy + head * in.dim, width, start, limit, in.dim);
  const auto* stats = reinterpret_cast<const float*>(a.stats + head * stats_rows(in.spans.queries));
  for (int i = static_cast<int>(threadIdx.x); i < 2 * Tile::N; i += static_cast<int>(blockDim.x)) {
    const bool valid = start + i / 2 < limit;
    ptx::cp_async4(reinterpret_cast<float*>(stage.stats) + i, valid ? stats + 2 * start + i : stats, valid);
  }
}

// Adds the gradients from a tile of queries to a warp's dk and dv. k, v: the warp's rows; scale: times log2(e).
template <bool Dk, bool Dv, class T, class Tile>
__device__ __forceinline__ void meet_queries(Accumulators<Tile::R, Tile::D>& dk, Accumulators<Tile::R, Tile::D>& dv,
                                             const T* k, const T* v, const Stage<T, Tile>& stage, const Seen* seen,
                                             int start, float scale) {
  constexpr int D = Tile::D, R = Tile::R, N = Tile::N;
  Accumulators<R, N> p = {};
  multiply_rows<D, R, N>(p, k, stage.a);
  QueryStats stats[N / 4];
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
    const uint4 two = ld16(stage.stats + n * 8 + lane_id() % 4 * 2);
    memcpy(stats + 2 * n, &two, sizeof two);
  }
  for_elements<R, N>(p, [&](float& x, int, int, int c) { x = ptx::exp2_approx(fmaf(x, scale, -stats[c].lse)); });
  if (!all_see<16 * R>(seen, start, start + N)) hide<R, N>(p, seen, start, 0.f);
  if constexpr (Dv) multiply_columns<D, R, N>(dv, p, stage.b);
  if constexpr (Dk) {
    Accumulators<R, N> ds = {};
    multiply_rows<D, R, N>(ds, v, stage.b);
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) ds[r][n][i] = p[r][n][i] * (ds[r][n][i] - stats[2 * n + i % 2].dy_by_y);
      }
    }
    multiply_columns<D, R, N>(dk, ds, stage.a);
  }
}

template <bool Sparse, bool Dk, bool Dv, class T, class Tile>
__device__ __forceinline__ void keys_rows(const Backward<T>& a) {
  ptx::wait_for_earlier_kernels();
  constexpr int D = Tile::D, R = Tile::R, N = Tile::N, kRows = Tile::kRows;
  SHARED(Sight<kRows>, sight);
  DYN_SMEM(raw);
  auto& smem = *reinterpret_cast<Shared<T, Tile>*>(raw);
  const Inputs<T>& in = a.in;
  const int kv_heads = in.heads / in.group, own = warp_id() * 16 * R;
  const int kv = static_cast<int>(blockIdx.x) % kv_heads, first = static_cast<int>(blockIdx.x) / kv_heads * kRows;
  look<Side::kKeys, Sparse>(sight, in.spans, first);
  const Seen* seen = sight.seen + own;
  int start = next_seen<kRows>(sight.seen, 0), head = kv * in.group, stage = 0;
  if (start != kNone) {
    load_tile<kRows, D>(smem.a, in.k + kv * in.dim, in.k_stride, first, in.spans.keys, in.dim);
    if constexpr (Dk) load_tile<kRows, D>(smem.b, in.v + kv * in.dim, in.v_stride, first, in.spans.keys, in.dim);
    load_queries(smem.stages[0], a, head, start, sight.last);
  }
  ptx::cp_async_commit();
  T *k = smem.a + own * kPitch<D>, *v = smem.b + own * kPitch<D>;
  Accumulators<R, D> dk = {}, dv = {};
  while (start != kNone) {
    int next = next_seen<kRows>(sight.seen, start + N), next_head = head;
    if (next == kNone && head + 1 < (kv + 1) * in.group) next = next_seen<kRows>(sight.seen, 0), ++next_head;
    ptx::cp_async_wait<0>();
    __syncthreads();  // this stage has arrived, the other one may be overwritten
    if (next != kNone) load_queries(smem.stages[1 - stage], a, next_head, next, sight.last);
    ptx::cp_async_commit();
    if (one_sees<16 * R>(seen, start, start + N)) {
      meet_queries<Dk, Dv>(dk, dv, k, v, smem.stages[stage], seen, start, in.scale * kLog2e);
    }
    start = next, head = next_head, stage = 1 - stage;
  }
  ptx::cp_async_wait<0>();
  float factor[R][2];
  const auto set = [&](float x) {
    for (int r = 0; r < R; ++r) factor[r][0] = factor[r][1] = x;
  };
  const int64_t row = first + own;
  const int rows = in.spans.keys - first - own;
  set(in.scale);
  if constexpr (Dk) store_rows<D, R>(a.dk + row * a.dk_stride + kv * in.dim, a.dk_stride, rows, in.dim, v, dk, factor);
  set(1);
  if constexpr (Dv) store_rows<D, R>(a.dv + row * a.dv_stride + kv * in.dim, a.dv_stride, rows, in.dim, k, dv, factor);
}

template <bool Dk, bool Dv, class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads) keys_backward(Backward<T> a) {
  keys_rows<false, Dk, Dv, T, Tile>(a);
}
template <bool Dk, bool Dv, class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads) keys_backward_sparse(Backward<T> a) {
  keys_rows<true, Dk, Dv, T, Tile>(a);
}

// ---- queries: dq

// Adds the gradients from a tile of keys to a warp's dq. q, dy: the warp's rows; scale: times log2(e).
template <class T, class Tile, class Row>
__device__ __forceinline__ void meet_keys(Accumulators<Tile::R, Tile::D>& dq, const T* q, const T* dy,
                                          const Stage<T, Tile>& stage, const QueryStats (&stats)[Tile::R][2],
                                          const Row* seen, int start, float scale) {
  constexpr int D = Tile::D, R = Tile::R, N = Tile::N;
  const bool all = all_see<16 * R>(seen, start, start + N);
  Accumulators<R, N> p = {}, ds = {};
  multiply_rows<D, R, N>(p, q, stage.a);
  for_elements<R, N>(p, [&](float& x, int r, int h, int) { x = ptx::exp2_approx(fmaf(x, scale, -stats[r][h].lse)); });
  hide_unseen<R, N>(p, seen, start, all);
  multiply_rows<D, R, N>(ds, dy, stage.b);
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int n = 0; n < N / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) ds[r][n][i] = p[r][n][i] * (ds[r][n][i] - stats[r][i / 2].dy_by_y);
    }
  }
  hide_unseen<R, N>(ds, seen, start, all);
  multiply_columns<D, R, N>(dq, ds, stage.a);
}

template <class T, class Tile>
__device__ __forceinline__ void load_keys(Stage<T, Tile>& stage, const Inputs<T>& in, int kv, int start, int limit) {
  load_tile<Tile::N, Tile::D>(stage.a, in.k + kv * in.dim, in.k_stride, start, limit, in.dim);
  load_tile<Tile::N, Tile::D>(stage.b, in.v + kv * in.dim, in.v_stride, start, limit, in.dim);
}

template <bool Sparse, class T, class Tile>
__device__ __forceinline__ void queries_rows(const Backward<T>& a) {
  ptx::wait_for_earlier_kernels();
  constexpr int D = Tile::D, R = Tile::R, N = Tile::N, kRows = Tile::kRows;
  using Row = SeenBy<Side::kQueries, Sparse>;
  using Sights = Sight<kRows, Row>;
  SHARED(Sights, sight);
  DYN_SMEM(raw);
  auto& smem = *reinterpret_cast<Shared<T, Tile>*>(raw);
  const Inputs<T>& in = a.in;
  // Longest work first: later queries see more keys.
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int head = block % in.heads, first = block / in.heads * kRows, own = warp_id() * 16 * R;
  const int queries = in.spans.queries, kv = head / in.group;
  look<Side::kQueries, Sparse>(sight, in.spans, first);
  const Row* seen = sight.seen + own;
  int start = next_seen<kRows>(sight.seen, 0), stage = 0;
  if (start != kNone) {
    const int64_t width = static_cast<int64_t>(in.heads) * in.dim;
    load_tile<kRows, D>(smem.a, in.q + head * in.dim, in.q_stride, first, queries, in.dim);
    load_tile<kRows, D>(smem.b, a.dy + head * in.dim, width, first, queries, in.dim);
    load_keys(smem.stages[0], in, kv, start, sight.last);
  }
  ptx::cp_async_commit();
  T *q = smem.a + own * kPitch<D>, *dy = smem.b + own * kPitch<D>;
  QueryStats stats[R][2];
  float factor[R][2];
  for (int i = 0; i < 2 * R; ++i) {
    const int row = first + own + i * 8 + lane_id() / 4;
    stats[i / 2][i % 2] = row < queries ? a.stats[head * stats_rows(queries) + row] : QueryStats{};
    factor[i / 2][i % 2] = in.scale;
  }
  Accumulators<R, D> dq = {};
  while (start != kNone) {
    const int next = next_seen<kRows>(sight.seen, start + N);
    ptx::cp_async_wait<0>();
    __syncthreads();  // this stage has arrived, the other one may be overwritten
    if (next != kNone) load_keys(smem.stages[1 - stage], in, kv, next, sight.last);
    ptx::cp_async_commit();
    if (one_sees<16 * R>(seen, start, start + N))
      meet_keys(dq, q, dy, smem.stages[stage], stats, seen, start, in.scale * kLog2e);
    start = next, stage = 1 - stage;
  }
  ptx::cp_async_wait<0>();
  const int64_t row = first + own;
  store_rows<D, R>(a.dq + row * a.dq_stride + head * in.dim, a.dq_stride, queries - first - own, in.dim, q, dq, factor);
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads) queries_backward(Backward<T> a) {
  queries_rows<false, T, Tile>(a);
}
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads) queries_backward_sparse(Backward<T> a) {
  queries_rows<true, T, Tile>(a);
}

// ---- launchers

template <class Tile, class T>
void launch_tiles(void (*kernel)(Backward<T>), int rows, int heads, const Backward<T>& a, cudaStream_t stream) {
  if (rows == 0) return;
  constexpr size_t kBytes = sizeof(Shared<T, Tile>);
  static_assert(kBytes + sizeof(Sight<Tile::kRows, SparseSeen>) <= 99 << 10,
                "the smallest GPUs (8.6, 8.9, 12.0) give a block 99 KiB");
  const dim3 grid(grid_size(div_ceil<int64_t>(rows, Tile::kRows) * heads));
  CUDA_CHECK(launch(kernel, {grid, dim3(Tile::kThreads), kBytes, stream}, a));
}

template <class T>
void differentiate_on_tensor_cores(const Backward<T>& a, cudaStream_t stream) {
  const int queries = a.in.spans.queries, keys = a.in.spans.keys, kv_heads = a.in.heads / a.in.group;
  const bool sparse = a.in.spans.sparse.group > 0;
  by_head_dim(a.in.dim, [&]<int D>() {
    using Keys = KeyTiles<D>;
    using Queries = QueryTiles<D>;
    const auto of_keys = [&]<bool Dk, bool Dv>() {
      const auto kernel = sparse ? keys_backward_sparse<Dk, Dv, T, Keys> : keys_backward<Dk, Dv, T, Keys>;
      launch_tiles<Keys>(kernel, keys, kv_heads, a, stream);
    };
    if constexpr (D <= 128) {
      of_keys.template operator()<true, true>();
    } else {  // dk and dv do not fit in registers together
      of_keys.template operator()<true, false>();
      of_keys.template operator()<false, true>();
    }
    launch_tiles<Queries>(sparse ? queries_backward_sparse<T, Queries> : queries_backward<T, Queries>, queries,
                          a.in.heads, a, stream);
  });
}

template <class T>
void find_stats(QueryStats* stats, const AttentionBwd& op, bool vectors, cudaStream_t stream) {
  if (op.q.rows() == 0) return;
  const StatsRows<T> a{stats,
                       data<T>(op.dy),
                       data<T>(op.y),
                       data<float>(op.lse),
                       op.q.rows(),
                       static_cast<int>(op.shape.heads),
                       static_cast<int>(op.shape.head_dim),
                       vectors};
  const int64_t blocks = div_ceil<int64_t>(a.rows * a.heads * kStatsLanes, kStatsThreads);
  CUDA_CHECK(launch(query_stats<T>, {dim3(grid_size(blocks)), dim3(kStatsThreads), 0, stream}, a));
}
}  // namespace
}  // namespace attention

namespace {
template <class T>
attention::Backward<T> backward_of(const AttentionBwd& op, void* scratch) {
  return {attention::inputs_of<T>(op),
          data<T>(op.dq),
          data<T>(op.dk),
          data<T>(op.dv),
          op.dq.stride(),
          op.dk.stride(),
          op.dv.stride(),
          data<T>(op.dy),
          static_cast<QueryStats*>(scratch),
          {data<float>(op.cos_sin), data<int>(op.positions)}};
}
}  // namespace

namespace {
void differentiate(const AttentionBwd& op, bool wgmma, void* scratch, cudaStream_t stream) {
  if (op.cos_sin && !(wgmma && warpgroups_take(op))) {
    return in_parts(op, [&]<class Part>(const Part& part) {
      if constexpr (std::is_same_v<Part, AttentionBwd>)
        differentiate(part, wgmma, scratch, stream);
      else
        run(part, scratch, stream);
    });
  }
  by_type(op.q.dtype, [&]<class T>() {
    const attention::Backward<T> a = backward_of<T>(op, scratch);
    attention::find_stats<T>(static_cast<QueryStats*>(scratch), op, a.in.vectors, stream);
    if constexpr (sizeof(T) == 2) {
      if (wgmma && warpgroups_take(a)) return attention::differentiate_by_warpgroups(a, stream);
      if (tensor_cores_take(a.in)) return attention::differentiate_on_tensor_cores(a, stream);
    }
    attention::differentiate_plainly(a, stream);
  });
}
}  // namespace

void run(const AttentionBwd& op, void* scratch, cudaStream_t stream) { differentiate(op, true, scratch, stream); }
void run_without_wgmma(const AttentionBwd& op, void* scratch, cudaStream_t stream) {
  differentiate(op, false, scratch, stream);
}

bool warpgroups_take(const AttentionBwd& op) {
  bool taken = false;
  by_type(op.q.dtype, [&]<class T>() {
    if constexpr (sizeof(T) == 2) taken = warpgroups_take(backward_of<T>(op, nullptr));
  });
  return taken;
}

}  // namespace athanor::cuda
