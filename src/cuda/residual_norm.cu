// Residual add with RMSNorm or LayerNorm, forward, again, and backward.
//   h = res + delta;  y = (h - mean) rstd w + b,  mean = 0 and no b for rms  [Ba et al. 2016, eq. 4; Zhang & Sennrich
//   2019, eq. 4].  With x = (h - mean) rstd and g = dy w:
//   dh += rstd (g - mean(g) - x mean(g x)), without mean(g) for rms;  dw += sum of dy x, db += sum of dy over the rows.
// Layout: [N, C] row-major; a block per row forward, a block per range of rows backward. Memory bound: a thread reads
// its columns again in each pass, from the L1 cache. Not timed on a GPU yet.
// Deterministic: sums over rows go through partial sums per block, whose number follows from N alone.
#include <algorithm>

#include "cuda/host_tools.h"
#include "cuda/reduce.h"
#include "cuda/residual_norm.h"
#include "cuda/vectors.h"

namespace athanor::cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr int64_t kMaxRowBlocks = 256;  // of the backward pass: about two per multiprocessor of an H200

// ---- device helpers

template <class T, class W>
struct Rows {
  T *h, *y;  // h is null when there is no delta
  float *mean, *rstd;
  const T *res, *delta;
  const W *w, *b;
  int columns;
  float eps;
  bool vectors;
};

// visit(column) for the chunks of this thread.
template <class T, class F>
__device__ __forceinline__ void for_chunks(int columns, F visit) {
  constexpr int kElements = kVector<T>;
  const int step = static_cast<int>(blockDim.x) * kElements;
  for (int c = static_cast<int>(threadIdx.x) * kElements; c < columns; c += step) visit(c);
}

// y of one row. The one place that computes y, for the same bits everywhere.
template <NormKind K, class T, class W>
__device__ __forceinline__ void apply_row(const Rows<T, W>& a, const T* h, T* y, float mean, float rstd) {
  constexpr int kElements = kVector<T>;
  for_chunks<T>(a.columns, [&](int c) {
    float v[kElements], w[kElements], b[kElements] = {};
    load_chunk(v, h, c, a.columns, a.vectors);
    load_chunk(w, a.w, c, a.columns, a.vectors);
    if constexpr (K == NormKind::layer) load_chunk(b, a.b, c, a.columns, a.vectors);
#pragma unroll
    for (int i = 0; i < kElements; ++i) v[i] = fmaf((v[i] - mean) * rstd, w[i], b[i]);
    store_chunk(y, v, c, a.columns, a.vectors);
  });
}

// ---- kernels

template <NormKind K, class T, class W>
__global__ void __launch_bounds__(kMaxThreads) add_norm_forward(Rows<T, W> a) {
  SHARED(float, room, [32]);
  constexpr int kElements = kVector<T>;
  const size_t row = blockIdx.x, start = row * static_cast<size_t>(a.columns);
  const T* h = a.delta ? a.h + start : a.res + start;
  float sum = 0, squares = 0;
  for_chunks<T>(a.columns, [&](int c) {
    float v[kElements];
    load_chunk(v, a.res + start, c, a.columns, a.vectors);
    if (a.delta) {
      float d[kElements];
      load_chunk(d, a.delta + start, c, a.columns, a.vectors);
#pragma unroll
      for (int i = 0; i < kElements; ++i) v[i] = to_float(from_float<T>(v[i] + d[i]));  // as it is stored
      store_chunk(a.h + start, v, c, a.columns, a.vectors);
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      sum += v[i];
      squares += v[i] * v[i];
    }
  });
  const float count = static_cast<float>(a.columns);
  float mean = 0;
  if constexpr (K == NormKind::layer) {  // the variance needs the mean first: the difference of squares cancels
    mean = block_sum(sum, room) / count;
    squares = 0;
    for_chunks<T>(a.columns, [&](int c) {
      float v[kElements];
      load_chunk(v, h, c, a.columns, a.vectors);
#pragma unroll
      for (int i = 0; i < kElements; ++i) squares += c + i < a.columns ? (v[i] - mean) * (v[i] - mean) : 0.f;
    });
  }
  const float rstd = 1.f / sqrtf(block_sum(squares, room) / count + a.eps);
  if (threadIdx.x == 0) {
    a.rstd[row] = rstd;
    if constexpr (K == NormKind::layer) a.mean[row] = mean;
  }
  apply_row<K>(a, h, a.y + start, mean, rstd);
}

template <NormKind K, class T, class W>
__global__ void __launch_bounds__(kMaxThreads) norm_apply(Rows<T, W> a) {
  const size_t row = blockIdx.x, start = row * static_cast<size_t>(a.columns);
  apply_row<K>(a, a.res + start, a.y + start, K == NormKind::layer ? a.mean[row] : 0.f, a.rstd[row]);
}

template <class T, class W>
struct BackwardRows {
  T* dh;
  float* partials;  // [blocks, dw | db]
  const T *dy, *h;
  const float *mean, *rstd;
  const W* w;
  int64_t rows, rows_per_block;
  int columns;
  bool vectors;
};

// What a chunk contributes: x, g and the incoming dy.
template <NormKind K, class T, class W>
struct Chunk {
  static constexpr int kElements = kVector<T>;
  float dy[kElements], x[kElements], g[kElements];

  __device__ __forceinline__ Chunk(const BackwardRows<T, W>& a, int64_t row, int c, float mean, float rstd) {
    const int64_t start = row * a.columns;
    float w[kElements];
    load_chunk(dy, a.dy + start, c, a.columns, a.vectors);
    load_chunk(x, a.h + start, c, a.columns, a.vectors);
    load_chunk(w, a.w, c, a.columns, a.vectors);
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      x[i] = (x[i] - mean) * rstd;
      g[i] = dy[i] * w[i];  // 0 past the end
    }
  }
};

// Sums for dw and db stay in shared memory, each column with the thread that owns it: element i of a thread's chunk
// lies at [chunk, i, thread], so that neighbours use different banks. Partial sums go out in the same order.
template <class T>
__host__ __device__ constexpr int slots_of(int columns, int threads) {
  const int chunk = threads * kVector<T>;
  return (columns + chunk - 1) / chunk * chunk;
}
template <class T>
__device__ __forceinline__ int slot_of(int column, int i, int threads) {  // column: of the chunk
  constexpr int kElements = kVector<T>;
  return (column / (threads * kElements) * kElements + i) * threads + column / kElements % threads;
}
template <class T>
__device__ __forceinline__ int column_of(int slot, int threads) {
  constexpr int kElements = kVector<T>;
  const int chunk = slot / (threads * kElements), i = slot / threads % kElements;
  return (chunk * threads + slot % threads) * kElements + i;
}

template <NormKind K, class T, class W>
__global__ void __launch_bounds__(kMaxThreads) add_norm_backward(BackwardRows<T, W> a) {
  SHARED(float, room, [32]);
  DYN_SMEM(raw);
  float* sums = reinterpret_cast<float*>(raw);  // [dw | db] by slot
  constexpr int kElements = kVector<T>, kSums = K == NormKind::layer ? 2 : 1;
  constexpr bool kLayer = K == NormKind::layer;
  const int threads = static_cast<int>(blockDim.x), slots = slots_of<T>(a.columns, threads);
  for (int s = static_cast<int>(threadIdx.x); s < kSums * slots; s += threads) sums[s] = 0;  // slots of this thread
  const int64_t first = blockIdx.x * a.rows_per_block;
  const int64_t last = first + a.rows_per_block < a.rows ? first + a.rows_per_block : a.rows;
  for (int64_t row = first; row < last; ++row) {
    const float mean = kLayer ? a.mean[row] : 0.f, rstd = a.rstd[row];
    float sum_g = 0, sum_gx = 0;
    for_chunks<T>(a.columns, [&](int c) {
      const Chunk<K, T, W> chunk(a, row, c, mean, rstd);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        if (c + i >= a.columns) continue;
        const int slot = slot_of<T>(c, i, threads);
        sum_g += chunk.g[i];
        sum_gx += chunk.g[i] * chunk.x[i];
        sums[slot] += chunk.dy[i] * chunk.x[i];
        if constexpr (kLayer) sums[slots + slot] += chunk.dy[i];
      }
    });
    const float count = static_cast<float>(a.columns);
    const float mean_g = kLayer ? block_sum(sum_g, room) / count : 0.f;
    const float mean_gx = block_sum(sum_gx, room) / count;
    for_chunks<T>(a.columns, [&](int c) {
      const Chunk<K, T, W> chunk(a, row, c, mean, rstd);
      float d[kElements];
      load_chunk(d, a.dh + row * a.columns, c, a.columns, a.vectors);
#pragma unroll
      for (int i = 0; i < kElements; ++i) d[i] += rstd * (chunk.g[i] - mean_g - chunk.x[i] * mean_gx);
      store_chunk(a.dh + row * a.columns, d, c, a.columns, a.vectors);
    });
  }
  float* partial = a.partials + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(kSums * slots);
  for (int s = static_cast<int>(threadIdx.x); s < kSums * slots; s += threads) partial[s] = sums[s];
}

// dw or db += the partial sums, block after block. partials: [blocks, stride], by slot
template <class T>
__global__ void __launch_bounds__(256)
    add_partials(float* sum, const float* partials, int blocks, int stride, int columns, int threads) {
  const int slot = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), column = column_of<T>(slot, threads);
  if (slot >= slots_of<T>(columns, threads) || column >= columns) return;
  float total = 0;
  for (int b = 0; b < blocks; ++b) total += partials[static_cast<size_t>(b) * static_cast<size_t>(stride) + slot];
  sum[column] += total;
}

// ---- launchers

template <class F>
void by_types(NormKind kind, DType stream, DType weights, F f) {
  by_type(stream, [&]<class T>() {
    by_type(weights, [&]<class W>() {
      if (kind == NormKind::layer) {
        f.template operator()<NormKind::layer, T, W>();
      } else {
        f.template operator()<NormKind::rms, T, W>();
      }
    });
  });
}

template <class T>
unsigned block_threads(int64_t columns) {  // one chunk a thread, whole warps
  return static_cast<unsigned>(
      std::min<int64_t>(kMaxThreads, round_up<int64_t>(columns, 32 * kVector<T>) / kVector<T>));
}
int64_t rows_per_block(int64_t rows) { return std::max<int64_t>(1, div_ceil<int64_t>(rows, kMaxRowBlocks)); }
int64_t row_blocks(int64_t rows) { return div_ceil<int64_t>(rows, rows_per_block(rows)); }
}  // namespace

void run(const AddNormFwd& op, void*, cudaStream_t stream) {
  const int columns = checked_columns("residual norm", op.res);
  if (op.res.rows() == 0) return;
  by_types(op.kind, op.res.dtype, op.w.dtype, [&]<NormKind K, class T, class W>() {
    Rows<T, W> a{data<T>(op.h),
                 data<T>(op.y),
                 data<float>(op.mean),
                 data<float>(op.rstd),
                 data<T>(op.res),
                 data<T>(op.delta),
                 data<W>(op.w),
                 data<W>(op.b),
                 columns,
                 op.eps};
    a.vectors = rows_are_vectors(columns, a.h, a.y, a.res, a.delta, a.w, a.b);
    const LaunchConfig config{dim3(grid_size(op.res.rows())), dim3(block_threads<T>(columns)), 0, stream};
    CUDA_CHECK(launch(add_norm_forward<K, T, W>, config, a));
  });
}

void run(const NormApply& op, void*, cudaStream_t stream) {
  const int columns = checked_columns("residual norm", op.h);
  if (op.h.rows() == 0) return;
  by_types(op.kind, op.h.dtype, op.w.dtype, [&]<NormKind K, class T, class W>() {
    Rows<T, W> a{.y = data<T>(op.y),
                 .mean = data<float>(op.mean),
                 .rstd = data<float>(op.rstd),
                 .res = data<T>(op.h),
                 .w = data<W>(op.w),
                 .b = data<W>(op.b),
                 .columns = columns};
    a.vectors = rows_are_vectors(columns, a.y, a.res, a.w, a.b);
    const LaunchConfig config{dim3(grid_size(op.h.rows())), dim3(block_threads<T>(columns)), 0, stream};
    CUDA_CHECK(launch(norm_apply<K, T, W>, config, a));
  });
}

namespace {
int partial_slots(const AddNormBwd& op) {  // dw and db of one block
  int slots = 0;
  by_type(op.h.dtype, [&]<class T>() {
    slots = slots_of<T>(checked_columns("residual norm", op.h), static_cast<int>(block_threads<T>(op.h.cols())));
  });
  return slots * (op.db ? 2 : 1);
}

template <class T>
void add_all_partials(const AddNormBwd& op, const float* partials, cudaStream_t stream) {
  const int columns = checked_columns("residual norm", op.h), threads = static_cast<int>(block_threads<T>(columns));
  const int slots = slots_of<T>(columns, threads), blocks = static_cast<int>(row_blocks(op.h.rows()));
  const LaunchConfig config{dim3(grid_size(div_ceil<int64_t>(slots, 256))), dim3(256), 0, stream};
  const int stride = partial_slots(op);
  CUDA_CHECK(launch(add_partials<T>, config, data<float>(op.dw), partials, blocks, stride, columns, threads));
  if (!op.db) return;
  CUDA_CHECK(launch(add_partials<T>, config, data<float>(op.db), partials + slots, blocks, stride, columns, threads));
}
}  // namespace

size_t scratch(const AddNormBwd& op) {
  return static_cast<size_t>(row_blocks(op.h.rows()) * partial_slots(op)) * sizeof(float);
}

void run(const AddNormBwd& op, void* scratch, cudaStream_t stream) {
  const int columns = checked_columns("residual norm", op.h);
  const int64_t rows = op.h.rows();
  if (rows == 0) return;
  auto* partials = static_cast<float*>(scratch);
  const size_t shared_bytes = static_cast<size_t>(partial_slots(op)) * sizeof(float);
  by_types(op.kind, op.h.dtype, op.w.dtype, [&]<NormKind K, class T, class W>() {
    BackwardRows<T, W> a{
        data<T>(op.dh),       partials,      data<T>(op.dy), data<T>(op.h),        data<float>(op.mean),
        data<float>(op.rstd), data<W>(op.w), rows,           rows_per_block(rows), columns};
    a.vectors = rows_are_vectors(columns, a.dh, a.dy, a.h, a.w);
    if (shared_bytes > 48 << 10) CUDA_CHECK(allow_shared_bytes(add_norm_backward<K, T, W>, shared_bytes));
    const dim3 grid(grid_size(row_blocks(rows))), block(block_threads<T>(columns));
    CUDA_CHECK(launch(add_norm_backward<K, T, W>, {grid, block, shared_bytes, stream}, a));
  });
  by_type(op.h.dtype, [&]<class T>() { add_all_partials<T>(op, partials, stream); });
}
}  // namespace athanor::cuda
