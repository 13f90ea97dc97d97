// RMSNorm of each head of the q and k parts of packed rows [q heads | k heads | v heads], v copied; its gradient; and
// the sums that both need where ranks have parts of heads.
//   y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps)  [Zhang & Sennrich 2019, eq. 4].  With n = x rstd and g = dy w:
//   dx = rstd (g - n mean(g n));  dw += sum of dy n over all rows and the heads of the part.
// Layout: a team of lanes, a power of two up to 32, holds a head in registers, a pack of 16 bytes per lane (two beyond
// 32 packs); a thread has several heads in flight. A warp sums a head. Memory bound: x, dy, y and dx are read or
// written once. A head that is too long for a team is cut into slices, one per row of the grid, and its sums are
// computed first, as those of a head that ranks share; x and dy are then read twice. Deterministic: dw goes through
// per-block partial sums, whose number depends on the shape alone. Not timed on a GPU yet.
#include <algorithm>

#include "cuda/column_sum.h"
#include "cuda/kernels.h"
#include "cuda/lanes.h"
#include "cuda/pack.h"
#include "cuda/reduce.h"

namespace athanor::cuda {
namespace {

constexpr int kForwardThreads = 256, kSumThreads = 256;
template <int P>
constexpr int kBackwardThreads = P == 2 ? 256 : 512;  // two packs take twice the registers
template <int P>
constexpr int kBackwardBlocks = P == 1 ? 2 : 1;  // least per multiprocessor, which limits registers

// Heads in flight per thread, by packs per lane and head.
template <int P>
constexpr int kForwardHeads = P == 1 ? 4 : 1;
template <int P>
constexpr int kBackwardHeads = P == 1 ? 2 : 1;

struct Heads {
  unsigned count;        // N (H + 2 K)
  unsigned q, k, a_row;  // H, K, H + 2 K
  int dim;
  int slice;          // elements of a head that a team holds: dim, or less in a long head
  int team_bits;      // 2^team_bits lanes per head
  float inverse_dim;  // of whole heads
  Weights wq, wk;
  __host__ __device__ int team() const { return 1 << team_bits; }
};

// The columns of this block's slice of a head.
struct Slice {
  int begin, end;
  __device__ __forceinline__ explicit Slice(const Heads& a) {
    begin = static_cast<int>(blockIdx.y) * a.slice;
    end = begin + a.slice < a.dim ? begin + a.slice : a.dim;
  }
};

// Position of head `number`, counted over all rows.
struct Head {
  bool normed, is_q;
  size_t statistic;  // index into rstd
  __device__ __forceinline__ Head(const Heads& a, unsigned number) {
    const unsigned row = number / a.a_row, head = number % a.a_row;
    normed = head < a.q + a.k;
    is_q = head < a.q;
    statistic = static_cast<size_t>(row) * (a.q + a.k) + head;
  }
};

__device__ __forceinline__ float team_sum(float value, int team) {
  for (int offset = team / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

// ---- kernels

template <class T, int E, int P>
__global__ void __launch_bounds__(kForwardThreads)
    qk_norm_forward(Heads a, T* y, float* rstd, const T* x, float eps, const float* sums) {
  ptx::wait_for_earlier_kernels();
  constexpr int kHeads = kForwardHeads<P>;
  const unsigned teams = kForwardThreads >> a.team_bits, team = threadIdx.x >> a.team_bits;
  const int lane = static_cast<int>(threadIdx.x) & (a.team() - 1);
  const unsigned first = blockIdx.x * teams * kHeads + team;
  const Slice slice(a);
  Pack<T, E> v[kHeads][P] = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int column = slice.begin + (p * a.team() + lane) * E;
      const unsigned number = first + h * teams;
      if (number < a.count && column < slice.end)
        v[h][p] = load_pack<E>(x + static_cast<size_t>(number) * a.dim + column);
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float squares = 0;
#pragma unroll
    for (int p = 0; p < P; ++p) {
#pragma unroll
      for (int i = 0; i < E; ++i) squares += v[h][p][i] * v[h][p][i];
    }
    squares = team_sum(squares, a.team());
    const unsigned number = first + h * teams;
    if (number >= a.count) continue;
    const Head head(a, number);
    if (sums && head.normed) squares = sums[head.statistic];
    const float scale = rsqrtf(squares * a.inverse_dim + eps);
    if (head.normed && lane == 0 && blockIdx.y == 0) rstd[head.statistic] = scale;
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int column = slice.begin + (p * a.team() + lane) * E;
      if (column >= slice.end) continue;
      T* to = y + static_cast<size_t>(number) * a.dim + column;
      if (!head.normed) {
        store_pack(to, v[h][p]);
        continue;
      }
      float w[E], out[E];
      load_weights(w, head.is_q ? a.wq : a.wk, column);
#pragma unroll
      for (int i = 0; i < E; ++i) out[i] = v[h][p][i] * scale * w[i];
      store_values(to, out);
    }
  }
}

template <class T>
struct Backward {
  T* dx;
  float* partials;  // [blocks, 2, dim]
  const T *dy, *x;
  const float* rstd;
  unsigned heads_per_block;
  const float* sums;  // optional [N, H + K]: over whole heads
};

// Backward of one head: adds to dw of q or k, and writes dx.
template <class T, int E, int P>
__device__ __forceinline__ void backward_head(const Heads& a, const Slice& slice, const Backward<T>& b, unsigned number,
                                              const Pack<T, E> (&x)[P], const Pack<T, E> (&dy)[P],
                                              float (&dw)[2][P][E]) {
  const int lane = static_cast<int>(threadIdx.x) & (a.team() - 1);
  const bool exists = number < a.count;
  const Head head(a, exists ? number : 0);
  const bool normed = exists && head.normed;
  const float scale = normed ? b.rstd[head.statistic] : 0.f;
  const float whole = normed && b.sums ? scale * b.sums[head.statistic] : 0.f;
  float g[P][E] = {}, sum = 0;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int column = slice.begin + (p * a.team() + lane) * E;
    if (normed && column < slice.end) load_weights(g[p], head.is_q ? a.wq : a.wk, column);
#pragma unroll
    for (int i = 0; i < E; ++i) {
      const float n = x[p][i] * scale, dn = dy[p][i] * n;
      g[p][i] = normed && column < slice.end ? dy[p][i] * g[p][i] : 0.f;
      sum += g[p][i] * n;
      dw[0][p][i] += head.is_q ? dn : 0.f;
      dw[1][p][i] += head.is_q ? 0.f : dn;  // 0 for heads of v
    }
  }
  sum = team_sum(sum, a.team());
  if (!exists) return;
  const float mean = (b.sums ? whole : sum) * a.inverse_dim;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int column = slice.begin + (p * a.team() + lane) * E;
    if (column >= slice.end) continue;
    T* to = b.dx + static_cast<size_t>(number) * a.dim + column;
    if (!normed) {
      store_pack(to, dy[p]);
      continue;
    }
    float out[E];
#pragma unroll
    for (int i = 0; i < E; ++i) out[i] = scale * (g[p][i] - x[p][i] * scale * mean);
    store_values(to, out);
  }
}

// In shared memory element i of pack p of a warp is at [warp, i, p], with padded rows, so that neither writing by packs
// nor reading by columns has bank conflicts.
template <int E>
__host__ __device__ constexpr int pitch(int slice) {
  return (slice / E + 31) / 32 * 32 + 32 / E;
}

template <class T, int E, int P>
__global__ void __launch_bounds__(kBackwardThreads<P>, kBackwardBlocks<P>) qk_norm_backward(Heads a, Backward<T> b) {
  ptx::wait_for_earlier_kernels();
  DYN_SMEM(raw);
  float* sums = reinterpret_cast<float*>(raw);  // [warps, E, pitch]
  constexpr int kHeads = kBackwardHeads<P>, kThreads = kBackwardThreads<P>, kWarps = kThreads / 32;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread & (a.team() - 1);
  const unsigned teams = kThreads >> a.team_bits, team = threadIdx.x >> a.team_bits;
  const unsigned begin = blockIdx.x * b.heads_per_block;
  const unsigned end = begin + b.heads_per_block < a.count ? begin + b.heads_per_block : a.count;
  const Slice slice(a);
  float dw[2][P][E] = {};
  for (unsigned at = begin; at < end; at += teams * kHeads) {
    Pack<T, E> x[kHeads][P] = {}, dy[kHeads][P] = {};
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int p = 0; p < P; ++p) {
        const int column = slice.begin + (p * a.team() + lane) * E;
        const unsigned number = at + h * teams + team;
        if (number >= end || column >= slice.end) continue;
        x[h][p] = load_pack<E>(b.x + static_cast<size_t>(number) * a.dim + column);
        dy[h][p] = load_pack<E>(b.dy + static_cast<size_t>(number) * a.dim + column);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const unsigned number = at + h * teams + team;
      backward_head<T, E, P>(a, slice, b, number < end ? number : a.count, x[h], dy[h], dw);
    }
  }
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    __syncthreads();  // reads of the other part's sums are done
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const int pack = p * a.team() + lane;
#pragma unroll
      for (int i = 0; i < E; ++i) {
        float sum = dw[part][p][i];
        for (int offset = 16; offset >= a.team(); offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
        if (thread % 32 < a.team() && pack * E < slice.end - slice.begin)
          sums[(warp * E + i) * pitch<E>(a.slice) + pack] = sum;
      }
    }
    __syncthreads();
    for (int c = thread; c < slice.end - slice.begin; c += kThreads) {
      float total = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total += sums[(w * E + c % E) * pitch<E>(a.slice) + c / E];
      b.partials[(static_cast<size_t>(blockIdx.x) * 2 + part) * a.dim + slice.begin + c] = total;
    }
  }
}

// A warp per head of q and k.
template <class T, int E>
__global__ void __launch_bounds__(kSumThreads) qk_norm_sums(Heads a, float* sums, const T* dy, const T* x) {
  ptx::wait_for_earlier_kernels();
  const unsigned normed = a.q + a.k, at = blockIdx.x * (kSumThreads / 32) + static_cast<unsigned>(warp_id());
  if (at >= a.count / a.a_row * normed) return;
  const unsigned head = at % normed;
  const size_t begin = (static_cast<size_t>(at / normed) * a.a_row + head) * a.dim;
  float sum = 0;
  for (int column = lane_id() * E; column < a.dim; column += 32 * E) {
    const Pack<T, E> of_x = load_pack<E>(x + begin + column);
    float other[E];
    if (dy) load_weights(other, head < a.q ? a.wq : a.wk, column);
    const Pack<T, E> of_dy = dy ? load_pack<E>(dy + begin + column) : of_x;
#pragma unroll
    for (int i = 0; i < E; ++i) sum += (dy ? of_dy[i] * other[i] : of_x[i]) * of_x[i];
  }
  sum = warp_reduce(sum, Plus{});
  if (lane_id() == 0) sums[at] = sum;
}

// ---- launchers

template <class Op>
Heads heads_of(const Op& op, int team_bits, int64_t slice, int64_t parts) {
  const int64_t dim = op.wq.numel(), a_row = op.heads + 2 * op.kv_heads, count = op.x.rows() * a_row;
  CHECK(count < int64_t{1} << 31, op.kName, ": ", count, " heads are beyond 32-bit indices; use fewer rows");
  return {.count = static_cast<unsigned>(count),
          .q = static_cast<unsigned>(op.heads),
          .k = static_cast<unsigned>(op.kv_heads),
          .a_row = static_cast<unsigned>(a_row),
          .dim = static_cast<int>(dim),
          .slice = static_cast<int>(slice),
          .team_bits = team_bits,
          .inverse_dim = 1.f / static_cast<float>(dim * parts),
          .wq = {op.wq.data, op.wq.dtype},
          .wk = {op.wk.data, op.wk.dtype}};
}

// Calls f.operator()<T, E, P>(heads, slices): P packs of E elements per lane, heads cut into `slices`.
template <class Op, class F>
void by_head(const Op& op, bool aligned, F f) {
  const int64_t dim = op.wq.numel();
  const auto fits = [&]<class T>() { return aligned && in_packs<T>(dim) && aligned16(op.wq.data, op.wk.data); };
  by_pack(op.x.dtype, fits, [&]<class T, int E>() {
    constexpr int kPacks = max_qk_norm_packs(E);
    const int64_t slices = div_ceil<int64_t>(dim, 32 * E * kPacks);
    const int64_t slice = round_up<int64_t>(div_ceil(dim, slices), E);
    int team_bits = 0;
    while (1 << team_bits < slice / E && team_bits < 5) ++team_bits;
    const Heads heads = heads_of(op, team_bits, slice, op.parts);
    if (slice <= int64_t{E} * heads.team()) {
      f.template operator()<T, E, 1>(heads, slices);
    } else {
      f.template operator()<T, E, kPacks>(heads, slices);
    }
  });
}

// The sums over whole heads, if the heads are cut: those of the op, or of this rank's heads, computed in scratch
// memory.
template <class Op>
const float* sums_of_cut_heads(const Op& op, const Tensor& dy, int64_t slices, void* scratch, cudaStream_t stream) {
  if (op.sums || slices == 1) return data<float>(op.sums);
  const QkNormSums sums{.sums = {scratch, DType::f32, op.rstd.shape},
                        .dy = dy,
                        .x = op.x,
                        .wq = op.wq,
                        .wk = op.wk,
                        .heads = op.heads,
                        .kv_heads = op.kv_heads};
  run(sums, nullptr, stream);
  return static_cast<const float*>(scratch);
}

// Splits the heads of the backward pass into ranges; each is a multiple of the heads that a block processes at a time.
struct Cut {
  int64_t heads_per_block, blocks;
  Cut(int64_t count, int64_t round) {
    heads_per_block = round_up<int64_t>(std::max<int64_t>(1, div_ceil(count, kMostQkNormBlocks)), round);
    blocks = div_ceil(count, heads_per_block);
  }
};
}  // namespace

void run(const QkNormFwd& op, void* scratch, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  by_head(op, aligned16(op.y.data, op.x.data), [&]<class T, int E, int P>(const Heads& heads, int64_t slices) {
    const int64_t in_block = int64_t{kForwardThreads} / heads.team() * kForwardHeads<P>;
    const float* sums = sums_of_cut_heads(op, {}, slices, scratch, stream);
    const dim3 grid(grid_size(div_ceil<int64_t>(heads.count, in_block)), grid_size(slices));
    const LaunchConfig config{grid, dim3(kForwardThreads), 0, stream};
    CUDA_CHECK(launch(qk_norm_forward<T, E, P>, config, heads, data<T>(op.y), data<float>(op.rstd), data<T>(op.x),
                      op.eps, sums));
  });
}

void run(const QkNormBwd& op, void* scratch, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  const int64_t dim = op.wq.numel();
  auto* partials = static_cast<float*>(scratch);
  int64_t blocks = 0;
  by_head(op, aligned16(op.dx.data, op.dy.data, op.x.data),
          [&]<class T, int E, int P>(const Heads& heads, int64_t slices) {
            const Cut cut(heads.count, int64_t{kBackwardThreads<P>} / heads.team() * kBackwardHeads<P>);
            blocks = cut.blocks;
            const float* sums = sums_of_cut_heads(op, op.dy, slices, partials + blocks * 2 * dim, stream);
            const Backward<T> b{data<T>(op.dx),
                                partials,
                                data<T>(op.dy),
                                data<T>(op.x),
                                data<float>(op.rstd),
                                static_cast<unsigned>(cut.heads_per_block),
                                sums};
            const size_t shared_bytes =
                static_cast<size_t>(kBackwardThreads<P> / 32 * E * pitch<E>(heads.slice)) * sizeof(float);
            const dim3 grid(grid_size(blocks), grid_size(slices));
            const LaunchConfig config{grid, dim3(kBackwardThreads<P>), shared_bytes, stream};
            CUDA_CHECK(launch(qk_norm_backward<T, E, P>, config, heads, b));
          });
  add_partial_sums({op.dwq, partials, blocks, dim, 2 * dim}, stream);
  add_partial_sums({op.dwk, partials + dim, blocks, dim, 2 * dim}, stream);
}

void run(const QkNormSums& op, void*, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  const bool aligned = aligned16(op.x.data, op.dy.data, op.wq.data, op.wk.data);
  const auto fits = [&]<class T>() { return aligned && in_packs<T>(op.wq.numel()); };
  by_pack(op.x.dtype, fits, [&]<class T, int E>() {
    const Heads heads = heads_of(op, 5, op.wq.numel(), 1);
    const LaunchConfig config{dim3(grid_size(div_ceil<int64_t>(op.sums.numel(), kSumThreads / 32))), dim3(kSumThreads),
                              0, stream};
    CUDA_CHECK(launch(qk_norm_sums<T, E>, config, heads, data<float>(op.sums), data<T>(op.dy), data<T>(op.x)));
  });
}
}  // namespace athanor::cuda
