// Attention forward on tensor cores. y = softmax(mask(scale q k^T)) v per head, by tiles of keys with a running softmax
// [Dao et al. 2022, alg. 1; Dao 2023]; p is rounded to the type of v before the second GEMM.
// Layout: a block takes kRows queries of one head, a warp 16 R of them; scores and sums stay in registers. During q k^T
// the next values are loaded, during p v the next keys. Compute bound. Deterministic: the sums of a row are over its
// keys in order. Not timed on a GPU yet.
#include "cuda/attention/attention.h"
#include "cuda/attention/plain.h"
#include "cuda/attention/softmax.h"
#include "cuda/attention/wgmma.h"
#include "cuda/kernels.h"
#include "cuda/quantize/quantize.h"

namespace athanor::cuda {
namespace attention {
namespace {

// Rows and keys per block, chosen to fit the 99 KiB of shared memory of the smallest GPUs, and the registers.
template <int D>
struct Tiles {
  static constexpr int kWarps = 4, R = D <= 128 ? 2 : 1, N = D <= 128 ? 64 : 32;
  static constexpr int kThreads = kWarps * 32, kRows = kWarps * 16 * R;
  template <class T>
  static constexpr size_t kSharedBytes = (kRows + 2 * N) * kPitch<D> * sizeof(T);
};

template <bool Sparse, class T, int D>
__device__ __forceinline__ void attend_rows(const Forward<T>& a) {
  ptx::wait_for_earlier_kernels();
  using Tile = Tiles<D>;
  using Row = SeenBy<Side::kQueries, Sparse>;
  using Sights = Sight<Tile::kRows, Row>;
  constexpr int R = Tile::R, N = Tile::N;
  SHARED(Sights, sight);
  DYN_SMEM(raw);
  T *q = reinterpret_cast<T*>(raw), *k = q + Tile::kRows * kPitch<D>, *v = k + N * kPitch<D>;
  const Inputs<T>& in = a.in;
  // Longest work first: later queries see more keys.
  const int block = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  const int head = block % in.heads, first = block / in.heads * Tile::kRows, own = warp_id() * 16 * R;
  const int kv = head / in.group * in.dim;  // column of keys and values
  look<Side::kQueries, Sparse>(sight, in.spans, first);
  const Row* seen = sight.seen + own;
  int start = next_seen<Tile::kRows>(sight.seen, 0);
  if (start != kNone) {
    load_tile<Tile::kRows, D>(q, in.q + head * in.dim, in.q_stride, first, in.spans.queries, in.dim);
    load_tile<N, D>(k, in.k + kv, in.k_stride, start, sight.last, in.dim);
  }
  ptx::cp_async_commit();
  Accumulators<R, D> o = {};
  Softmax<R> softmax;
  while (start != kNone) {
    const bool meets = one_sees<16 * R>(seen, start, start + N);
    Accumulators<R, N> s = {};
    ptx::cp_async_wait<0>();
    __syncthreads();  // keys have arrived, the previous values may be overwritten
    load_tile<N, D>(v, in.v + kv, in.v_stride, start, sight.last, in.dim);
    ptx::cp_async_commit();
    if (meets) multiply_rows<D, R, N>(s, q + own * kPitch<D>, k);
    ptx::cp_async_wait<0>();
    __syncthreads();  // values have arrived, the keys may be overwritten
    const int next = next_seen<Tile::kRows>(sight.seen, start + N);
    if (next != kNone) load_tile<N, D>(k, in.k + kv, in.k_stride, next, sight.last, in.dim);
    ptx::cp_async_commit();
    if (meets) {
      if (!all_see<16 * R>(seen, start, start + N)) hide<R, N>(s, seen, start, -INFINITY);
      float shrink[R][2];
      softmax.template add<N>(s, in.scale * kLog2e, shrink);
      multiply_by_row<R, D>(o, shrink);
      multiply_columns<D, R, N>(o, s, v);
    }
    start = next;
  }
  ptx::cp_async_wait<0>();
  float factor[R][2];
  finish<R>(factor, softmax, a, first + own, head);
  if (a.amax) {
    uint32_t amax = 0;
    add_amax<R, D>(amax, o, factor);
    raise_by_warp<T>(a.amax, amax);
  }
  const int64_t width = static_cast<int64_t>(in.heads) * in.dim, row = first + own;
  store_rows<D, R>(a.y + row * width + head * in.dim, width, in.spans.queries - first - own, in.dim,
                   q + own * kPitch<D>, o, factor);
}

template <class T, int D>
__global__ void __launch_bounds__(Tiles<D>::kThreads) attend(Forward<T> a) {
  attend_rows<false, T, D>(a);
}
template <class T, int D>
__global__ void __launch_bounds__(Tiles<D>::kThreads) attend_sparse(Forward<T> a) {
  attend_rows<true, T, D>(a);
}

template <class T>
void attend_on_tensor_cores(const Forward<T>& a, cudaStream_t stream) {
  by_head_dim(a.in.dim, [&]<int D>() {
    using Tile = Tiles<D>;
    const int64_t blocks = div_ceil<int64_t>(a.in.spans.queries, Tile::kRows) * a.in.heads;
    constexpr size_t kBytes = Tile::template kSharedBytes<T>;
    static_assert(kBytes + sizeof(Sight<Tile::kRows, SparseSeen>) <= 99 << 10,
                  "the smallest GPUs (8.6, 8.9, 12.0) give a block 99 KiB");
    const auto kernel = a.in.spans.sparse.group > 0 ? attend_sparse<T, D> : attend<T, D>;
    CUDA_CHECK(launch(kernel, {dim3(grid_size(blocks)), dim3(Tile::kThreads), kBytes, stream}, a));
  });
}
}  // namespace

void attend(const AttentionFwd& op, bool wgmma, cudaStream_t stream) {
  uint32_t* amax = zeroed(op.amax, stream);
  if (op.q.rows() == 0) return;
  by_type(op.q.dtype, [&]<class T>() {
    const Forward<T> a{inputs_of<T>(op), data<T>(op.y), data<float>(op.lse), data<float>(op.top), amax};
    if constexpr (sizeof(T) == 2) {
      if (wgmma && warpgroups_take(a)) return attend_by_warpgroups(a, stream);
      if (tensor_cores_take(a.in)) return attend_on_tensor_cores(a, stream);
    }
    attend_plainly(a, stream);
    find_amax(op.amax, op.y, stream);
  });
}
}  // namespace attention

void run(const AttentionFwd& op, void*, cudaStream_t stream) { attention::attend(op, true, stream); }
void run_without_wgmma(const AttentionFwd& op, void*, cudaStream_t stream) { attention::attend(op, false, stream); }
}  // namespace athanor::cuda
