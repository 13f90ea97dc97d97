// RMSNorm and LayerNorm: forward, recomputation of y, backward.
//   y = (h - mean) rstd w + b,  mean = 0 and no b for rms  [Ba et al. 2016, eq. 4; Zhang & Sennrich 2019, eq. 4].
//   With x = (h - mean) rstd and g = dy w:
//   dh += rstd (g - mean(g) - x mean(g x)), without mean(g) for rms;  dw += sum of dy x, db += sum of dy over the rows.
// Layout: [N, C] row-major; whole warps hold a row in registers: up to 16384 columns of 16 bits or 8192 of 32 bits
// forward, and 8192 columns backward; longer or unaligned rows are read element by element. Memory bound: each
// activation is read and written once. Deterministic: sums over rows go through per-block partial sums, whose number
// depends on the shape alone. Not timed on a GPU yet.
#include <algorithm>

#include "cuda/column_sum.h"
#include "cuda/kernels.h"
#include "cuda/pack.h"
#include "cuda/quantize/amax.h"
#include "cuda/reduce.h"

namespace athanor::cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kShortBlock = 256;  // threads of a block that several rows share
constexpr int kForwardPacks = 4;  // packs per thread
template <class T>
constexpr int kBackwardPacks = 16 / kVector<T>;  // 16 elements, whose sums also fit in registers

// ---- device helpers

// Every kernel computes y by this function, so that y has the same bits everywhere.
__device__ __forceinline__ float normalised(float h, float mean, float rstd, float w, float b) {
  return fmaf((h - mean) * rstd, w, b);
}

template <class T>
struct Rows {
  T* y;
  float *mean, *rstd;
  const T* h;
  Weights w, b;
  int64_t rows;
  int columns;
  float eps;
  uint32_t* amax;  // may be null
};

__device__ __forceinline__ float inverse_deviation(float squares, int columns, float eps) {
  return 1.f / sqrtf(squares / static_cast<float>(columns) + eps);
}

template <NormKind K, int E>
__device__ __forceinline__ void load_weight_and_bias(float (&w)[E], float (&b)[E], const Weights& weight,
                                                     const Weights& bias, int column) {
  load_weights(w, weight, column);
  if constexpr (K == NormKind::layer) {
    load_weights(b, bias, column);
  } else {
#pragma unroll
    for (int i = 0; i < E; ++i) b[i] = 0;
  }
}

// Computes and stores y for this thread's packs of one row. columns: length of the row, or 0 to store nothing.
template <NormKind K, class T, int P, bool L>
__device__ __forceinline__ void store_normalised(const Rows<T>& a, T* y, const Pack<T, kVector<T>> (&h)[P], int columns,
                                                 float mean, float rstd, Amax<L>& amax) {
  constexpr int kElements = kVector<T>;
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const int column = static_cast<int>(p * blockDim.x + threadIdx.x) * kElements;
    if (column >= columns) continue;
    float w[kElements], b[kElements], out[kElements];
    load_weight_and_bias<K>(w, b, a.w, a.b, column);
#pragma unroll
    for (int i = 0; i < kElements; ++i) out[i] = normalised(h[p][i], mean, rstd, w[i], b[i]);
    store_values(y + column, out);
    amax.add(out);
  }
}

// ---- forward, rows in registers: a row has blockDim.x threads, and a block has several rows only if these are one
// warp each

template <NormKind K, class T, bool L>
__global__ void __launch_bounds__(kMaxThreads) norm_forward(Rows<T> a) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, smem, [32]);
  constexpr int kElements = kVector<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  // Without amax, whole warps may return: nothing synchronizes the rows of a block. With amax, all threads take part in
  // its reduction.
  if (!L && row >= a.rows) return;
  const int columns = row < a.rows ? a.columns : 0;
  const int64_t start = row * a.columns;
  Pack<T, kElements> h[kForwardPacks] = {};
#pragma unroll
  for (int p = 0; p < kForwardPacks; ++p) {
    const int column = static_cast<int>(p * blockDim.x + threadIdx.x) * kElements;
    if (column < columns) h[p] = load_pack<kElements>(a.h + start + column);
  }
  float sum = 0, squares = 0;
#pragma unroll
  for (int p = 0; p < kForwardPacks; ++p) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      sum += h[p][i];
      squares += h[p][i] * h[p][i];
    }
  }
  float mean = 0;
  if constexpr (K == NormKind::layer) {  // mean first: E[h^2] - mean^2 would cancel
    mean = block_sum(sum, smem) / static_cast<float>(a.columns);
    squares = 0;
#pragma unroll
    for (int p = 0; p < kForwardPacks; ++p) {
      const bool exists = static_cast<int>(p * blockDim.x + threadIdx.x) * kElements < a.columns;
#pragma unroll
      for (int i = 0; i < kElements; ++i) squares += exists ? (h[p][i] - mean) * (h[p][i] - mean) : 0.f;
    }
  }
  const float rstd = inverse_deviation(block_sum(squares, smem), a.columns, a.eps);
  if (threadIdx.x == 0 && row < a.rows) {
    a.rstd[row] = rstd;
    if constexpr (K == NormKind::layer) a.mean[row] = mean;
  }
  Amax<L> amax;
  store_normalised<K>(a, a.y + start, h, columns, mean, rstd, amax);
  amax.template raise<T>(a.amax);
}

template <NormKind K, class T>
__global__ void __launch_bounds__(kMaxThreads) norm_apply(Rows<T> a) {
  ptx::wait_for_earlier_kernels();
  constexpr int kElements = kVector<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const int64_t start = row * a.columns;
  Pack<T, kElements> h[kForwardPacks];
#pragma unroll
  for (int p = 0; p < kForwardPacks; ++p) {
    const int column = static_cast<int>(p * blockDim.x + threadIdx.x) * kElements;
    if (column < a.columns) h[p] = load_pack<kElements>(a.h + start + column);
  }
  Amax<false> unused;
  store_normalised<K>(a, a.y + start, h, a.columns, K == NormKind::layer ? a.mean[row] : 0.f, a.rstd[row], unused);
}

// ---- forward, rows of any length: one block per row

template <NormKind K, class T, bool L>
__global__ void __launch_bounds__(kMaxThreads) norm_forward_any(Rows<T> a) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, smem, [32]);
  const int64_t start = static_cast<int64_t>(blockIdx.x) * a.columns;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const T* h = a.h + start;
  float sum = 0, squares = 0;
  for (int c = thread; c < a.columns; c += threads) {
    const float v = to_float(h[c]);
    sum += v;
    squares += v * v;
  }
  float mean = 0;
  if constexpr (K == NormKind::layer) {
    mean = block_sum(sum, smem) / static_cast<float>(a.columns);
    squares = 0;
    for (int c = thread; c < a.columns; c += threads) squares += (to_float(h[c]) - mean) * (to_float(h[c]) - mean);
  }
  const float rstd = inverse_deviation(block_sum(squares, smem), a.columns, a.eps);
  if (threadIdx.x == 0) {
    a.rstd[blockIdx.x] = rstd;
    if constexpr (K == NormKind::layer) a.mean[blockIdx.x] = mean;
  }
  Amax<L> amax;
  for (int c = thread; c < a.columns; c += threads) {
    float w[1], b[1];
    load_weight_and_bias<K>(w, b, a.w, a.b, c);
    const float y[1] = {normalised(to_float(h[c]), mean, rstd, w[0], b[0])};
    a.y[start + c] = from_float<T>(y[0]);
    amax.add(y);
  }
  amax.template raise<T>(a.amax);
}

template <NormKind K, class T>
__global__ void __launch_bounds__(kMaxThreads) norm_apply_any(Rows<T> a) {
  ptx::wait_for_earlier_kernels();
  const int64_t start = static_cast<int64_t>(blockIdx.x) * a.columns;
  const float mean = K == NormKind::layer ? a.mean[blockIdx.x] : 0.f, rstd = a.rstd[blockIdx.x];
  for (int c = static_cast<int>(threadIdx.x); c < a.columns; c += static_cast<int>(blockDim.x)) {
    float w[1], b[1];
    load_weight_and_bias<K>(w, b, a.w, a.b, c);
    a.y[start + c] = from_float<T>(normalised(to_float(a.h[start + c]), mean, rstd, w[0], b[0]));
  }
}

// ---- backward, rows in registers

template <class T>
struct BackwardRows {
  T* dh;
  float* partials;  // [blocks, dw | db]
  const T *dy, *h;
  const float *mean, *rstd;
  Weights w;
  int64_t rows, rows_per_block;
  int columns;
  uint32_t* amax;  // amax of dh; may be null
};

// Sums both values over the warps of a row; all threads get the result. All rows of the block must call it. `smem`
// alternates between two halves of shared memory from call to call, so that one barrier suffices.
__device__ __forceinline__ float2 row_sums(float2 value, float2* smem) {
  value.x = warp_reduce(value.x, Plus{});
  value.y = warp_reduce(value.y, Plus{});
  const unsigned warps = blockDim.x / 32, first = threadIdx.y * warps;
  if (warps == 1) return value;
  if (threadIdx.x % 32 == 0) smem[first + threadIdx.x / 32] = value;
  __syncthreads();
  value = smem[first];
  for (unsigned w = 1; w < warps; ++w) {
    value.x += smem[first + w].x;
    value.y += smem[first + w].y;
  }
  return value;
}

// Partial dw and db of a thread's columns.
template <class T>
struct ColumnSums {
  static constexpr int kPacks = kBackwardPacks<T>, kElements = kVector<T>;
  float dw[kPacks][kElements] = {}, db[kPacks][kElements] = {};

  // to: [dw | db], each with `columns` elements
  template <NormKind K>
  __device__ __forceinline__ void store(float* to, int columns) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = static_cast<int>(p * blockDim.x + threadIdx.x) * kElements;
      if (column >= columns) continue;
      store_values(to + column, dw[p]);
      if constexpr (K == NormKind::layer) store_values(to + columns + column, db[p]);
    }
  }

  // In shared memory element i of pack p of a thread is at [p, i, thread], with padded rows, so that neither
  // neighbouring threads nor neighbouring columns have bank conflicts.
  static __host__ __device__ int pitch(int threads) { return threads + 32 / kElements; }
  static __host__ __device__ int slots(int threads) { return kPacks * kElements * pitch(threads); }
  static __device__ __forceinline__ int slot(int column, int threads) {
    const int pack = column / kElements;
    return (pack / threads * kElements + column % kElements) * pitch(threads) + pack % threads;
  }
  template <NormKind K>
  __device__ __forceinline__ void store_shared(float* to) const {  // [dw | db] by slot
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const int at = (p * kElements + i) * pitch(threads) + thread;
        to[at] = dw[p][i];
        if constexpr (K == NormKind::layer) to[slots(threads) + at] = db[p][i];
      }
    }
  }
};

// A row in registers; all loads are in flight at once.
template <class T>
struct BackwardRow {
  static constexpr int kPacks = kBackwardPacks<T>, kElements = kVector<T>;
  Pack<T, kElements> dy[kPacks] = {}, h[kPacks] = {}, dh[kPacks];
  float mean = 0, rstd = 0;

  template <NormKind K>
  __device__ __forceinline__ void load(const BackwardRows<T>& a, int64_t row) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = static_cast<int>(p * blockDim.x + threadIdx.x) * kElements;
      if (column >= a.columns) continue;
      dy[p] = load_pack<kElements>(a.dy + row * a.columns + column);
      h[p] = load_pack<kElements>(a.h + row * a.columns + column);
      dh[p] = load_pack<kElements>(a.dh + row * a.columns + column);
    }
    if constexpr (K == NormKind::layer) mean = a.mean[row];
    rstd = a.rstd[row];
  }
  // Adds to the column sums; returns this thread's partial sums of g and g x.
  __device__ __forceinline__ float2 add_to(ColumnSums<T>& sums, const float (&w)[kPacks][kElements]) const {
    float2 sum{0, 0};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const float x = (h[p][i] - mean) * rstd, g = dy[p][i] * w[p][i];  // dy is 0 past the end
        sum.x += g;
        sum.y += g * x;
        sums.dw[p][i] += dy[p][i] * x;
        sums.db[p][i] += dy[p][i];
      }
    }
    return sum;
  }
  template <bool L>
  __device__ __forceinline__ void store(const BackwardRows<T>& a, int64_t row, const float (&w)[kPacks][kElements],
                                        float mean_g, float mean_gx, Amax<L>& amax) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int column = static_cast<int>(p * blockDim.x + threadIdx.x) * kElements;
      if (column >= a.columns) continue;
      float d[kElements];
#pragma unroll
      for (int i = 0; i < kElements; ++i)
        d[i] = dh[p][i] + rstd * (dy[p][i] * w[p][i] - mean_g - (h[p][i] - mean) * rstd * mean_gx);
      store_values(a.dh + row * a.columns + column, d);
      amax.add(d);
    }
  }
};

// Resident blocks per SM, so that one computes while others load: three if registers allow it without spilling.
template <NormKind K, class T>
constexpr int kShortResident = K == NormKind::rms && sizeof(T) == 2 ? 3 : 2;

// A block has blockDim.y rows at a time, with blockDim.x threads each. Dynamic shared memory: column sums per row, if
// there are several rows.
template <NormKind K, class T, int Threads, bool L>
__global__ void __launch_bounds__(Threads, Threads == kShortBlock ? kShortResident<K, T> : 1)
    norm_backward(BackwardRows<T> a) {
  ptx::wait_for_earlier_kernels();
  SHARED(float2, smem, [2][kMaxThreads / 32]);
  constexpr bool kLayer = K == NormKind::layer;
  using Row = BackwardRow<T>;
  float w[Row::kPacks][Row::kElements] = {};
#pragma unroll
  for (int p = 0; p < Row::kPacks; ++p) {
    const int column = static_cast<int>(p * blockDim.x + threadIdx.x) * Row::kElements;
    if (column < a.columns) load_weights(w[p], a.w, column);
  }
  ColumnSums<T> sums;
  const int64_t first = blockIdx.x * a.rows_per_block;
  const int64_t last = first + a.rows_per_block < a.rows ? first + a.rows_per_block : a.rows;
  const float scale = 1.f / static_cast<float>(a.columns);
  Amax<L> amax;
  int half = 0;
  for (int64_t next = first; next < last; next += blockDim.y, half ^= 1) {
    const int64_t row = next + threadIdx.y;
    Row r;
    if (row < last) r.template load<K>(a, row);
    const float2 total = row_sums(r.add_to(sums, w), smem[half]);
    if (row < last) r.store(a, row, w, kLayer ? total.x * scale : 0.f, total.y * scale, amax);
  }
  amax.template raise<T>(a.amax);
  constexpr int kSums = kLayer ? 2 : 1;
  float* partial = a.partials + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(kSums * a.columns);
  if (blockDim.y == 1) return sums.template store<K>(partial, a.columns);
  DYN_SMEM(raw);                                             // unused with one row at a time
  float* const shared_sums = reinterpret_cast<float*>(raw);  // [blockDim.y, dw | db]
  const int threads = static_cast<int>(blockDim.x), slots = ColumnSums<T>::slots(threads);
  sums.template store_shared<K>(shared_sums + static_cast<int>(threadIdx.y) * kSums * slots);
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); c < kSums * a.columns;
       c += static_cast<int>(blockDim.x * blockDim.y)) {
    const int is_db = c >= a.columns ? 1 : 0;
    const float* from = shared_sums + is_db * slots + ColumnSums<T>::slot(c - is_db * a.columns, threads);
    float total = 0;
    for (int y = 0; y < static_cast<int>(blockDim.y); ++y) total += from[y * kSums * slots];
    partial[c] = total;
  }
}

// ---- backward, rows of any length: dw and db sums in shared memory, each column always by the same thread

template <NormKind K, class T, bool L>
__global__ void __launch_bounds__(kMaxThreads) norm_backward_any(BackwardRows<T> a) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, smem, [32]);
  DYN_SMEM(raw);
  float* const sums = reinterpret_cast<float*>(raw);  // [dw | db]
  constexpr bool kLayer = K == NormKind::layer;
  constexpr int kSums = kLayer ? 2 : 1;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int64_t first = blockIdx.x * a.rows_per_block;
  const int64_t last = first + a.rows_per_block < a.rows ? first + a.rows_per_block : a.rows;
  for (int c = thread; c < a.columns; c += threads) {
    sums[c] = 0;
    if constexpr (kLayer) sums[a.columns + c] = 0;
  }
  Amax<L> amax;
  for (int64_t row = first; row < last; ++row) {
    const T *dy = a.dy + row * a.columns, *h = a.h + row * a.columns;
    const float mean = kLayer ? a.mean[row] : 0.f, rstd = a.rstd[row], scale = 1.f / static_cast<float>(a.columns);
    float sum_g = 0, sum_gx = 0, w[1];
    for (int c = thread; c < a.columns; c += threads) {
      load_weights(w, a.w, c);
      const float x = (to_float(h[c]) - mean) * rstd, d = to_float(dy[c]);
      sum_g += d * w[0];
      sum_gx += d * w[0] * x;
      sums[c] += d * x;
      if constexpr (kLayer) sums[a.columns + c] += d;
    }
    const float mean_g = kLayer ? block_sum(sum_g, smem) * scale : 0.f, mean_gx = block_sum(sum_gx, smem) * scale;
    for (int c = thread; c < a.columns; c += threads) {
      load_weights(w, a.w, c);
      const float x = (to_float(h[c]) - mean) * rstd, g = to_float(dy[c]) * w[0];
      T* dh = a.dh + row * a.columns + c;
      const float sum[1] = {to_float(*dh) + rstd * (g - mean_g - x * mean_gx)};
      *dh = from_float<T>(sum[0]);
      amax.add(sum);
    }
  }
  amax.template raise<T>(a.amax);
  float* partial = a.partials + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(kSums * a.columns);
  for (int c = thread; c < a.columns; c += threads) {
    partial[c] = sums[c];
    if constexpr (kLayer) partial[a.columns + c] = sums[a.columns + c];
  }
}

// ---- launchers

template <class F>
void by_kind(NormKind kind, DType dtype, F f) {
  by_type(dtype, [&]<class T>() {
    if (kind == NormKind::layer) {
      f.template operator()<NormKind::layer, T>();
    } else {
      f.template operator()<NormKind::rms, T>();
    }
  });
}

// Threads per row with `packs` packs per thread; 0 if the row does not fit or is not made of whole packs.
template <class T, class... P>
unsigned row_threads(int columns, int packs, const P*... pointers) {
  const int threads = round_up(div_ceil(columns, kVector<T> * packs), 32);
  return in_packs<T>(columns) && aligned16(pointers...) && threads <= kMaxThreads ? static_cast<unsigned>(threads) : 0;
}
unsigned any_row_threads(int columns) { return static_cast<unsigned>(std::min(kMaxThreads, round_up(columns, 32))); }

// Launches kernel `in_registers`, or `any` if rows do not fit in registers.
template <class T>
void launch_rows(void (*in_registers)(Rows<T>), void (*any)(Rows<T>), const Rows<T>& a, cudaStream_t stream) {
  const unsigned threads = row_threads<T>(a.columns, kForwardPacks, a.h, a.y, a.w.data, a.b.data);
  if (threads == 0) {
    CUDA_CHECK(launch(any, {dim3(grid_size(a.rows)), dim3(any_row_threads(a.columns)), 0, stream}, a));
    return;
  }
  const unsigned together = threads == 32 ? kShortBlock / 32 : 1;
  CUDA_CHECK(launch(in_registers,
                    {dim3(grid_size(div_ceil<int64_t>(a.rows, together))), dim3(threads, together), 0, stream}, a));
}

// The smallest GPUs give a block 99 KiB: rows of 12,544 columns with a layer norm, twice as many with an RMSNorm.
void require_shared(size_t bytes, int64_t columns) {
  constexpr size_t kStaticBytes = 1024;  // `smem`, padded to the alignment of DYN_SMEM
  int device = 0, most = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  if (bytes + kStaticBytes > static_cast<size_t>(most))
    throw Error(cat("norm_bwd: rows of ", columns, " columns need ", bytes, " bytes of shared memory, this GPU has ",
                    most, " for a block; use a smaller hidden_size"));
}

template <NormKind K, class T, bool L>
void launch_backward(const BackwardRows<T>& a, cudaStream_t stream) {
  constexpr size_t kSums = K == NormKind::layer ? 2 : 1;
  const unsigned threads = row_threads<T>(a.columns, kBackwardPacks<T>, a.dh, a.dy, a.h, a.w.data, a.partials);
  const dim3 grid(grid_size(NormCut(a.rows).blocks));
  if (threads == 0) {
    const size_t shared_bytes = kSums * static_cast<size_t>(a.columns) * sizeof(float);
    require_shared(shared_bytes, a.columns);
    const LaunchConfig config{grid, dim3(any_row_threads(a.columns)), shared_bytes, stream};
    CUDA_CHECK(launch(norm_backward_any<K, T, L>, config, a));
    return;
  }
  const unsigned together = std::max(1u, kShortBlock / threads);
  const size_t sums = together * kSums * static_cast<size_t>(ColumnSums<T>::slots(static_cast<int>(threads)));
  const LaunchConfig config{grid, dim3(threads, together), together > 1 ? sums * sizeof(float) : 0, stream};
  if (threads <= kShortBlock) {
    CUDA_CHECK(launch(norm_backward<K, T, kShortBlock, L>, config, a));
  } else {
    CUDA_CHECK(launch(norm_backward<K, T, kMaxThreads, L>, config, a));
  }
}
}  // namespace

void run(const NormFwd& op, void*, cudaStream_t stream) {
  const int columns = checked_columns(op.kName, op.h);
  uint32_t* amax = zeroed(op.amax, stream);
  if (op.h.numel() == 0) return;
  by_kind(op.kind, op.h.dtype, [&]<NormKind K, class T>() {
    const Rows<T> a{.y = data<T>(op.y),
                    .mean = data<float>(op.mean),
                    .rstd = data<float>(op.rstd),
                    .h = data<T>(op.h),
                    .w = {op.w.data, op.w.dtype},
                    .b = {op.b.data, op.w.dtype},
                    .rows = op.h.rows(),
                    .columns = columns,
                    .eps = op.eps,
                    .amax = amax};
    by_wanted(amax, [&]<bool L>() { launch_rows<T>(norm_forward<K, T, L>, norm_forward_any<K, T, L>, a, stream); });
  });
}

void run(const NormApply& op, void*, cudaStream_t stream) {
  const int columns = checked_columns(op.kName, op.h);
  if (op.h.numel() == 0) return;
  by_kind(op.kind, op.h.dtype, [&]<NormKind K, class T>() {
    const Rows<T> a{.y = data<T>(op.y),
                    .mean = data<float>(op.mean),
                    .rstd = data<float>(op.rstd),
                    .h = data<T>(op.h),
                    .w = {op.w.data, op.w.dtype},
                    .b = {op.b.data, op.w.dtype},
                    .rows = op.h.rows(),
                    .columns = columns};
    launch_rows<T>(norm_apply<K, T>, norm_apply_any<K, T>, a, stream);
  });
}

void run(const NormBwd& op, void* scratch, cudaStream_t stream) {
  const int columns = checked_columns(op.kName, op.h);
  const int64_t rows = op.h.rows(), values = int64_t{columns} * (op.db ? 2 : 1);
  uint32_t* amax = zeroed(op.amax, stream);
  if (op.h.numel() == 0) return;
  auto* partials = static_cast<float*>(scratch);
  const NormCut cut(rows);
  by_kind(op.kind, op.h.dtype, [&]<NormKind K, class T>() {
    const BackwardRows<T> a{.dh = data<T>(op.dh),
                            .partials = partials,
                            .dy = data<T>(op.dy),
                            .h = data<T>(op.h),
                            .mean = data<float>(op.mean),
                            .rstd = data<float>(op.rstd),
                            .w = {op.w.data, op.w.dtype},
                            .rows = rows,
                            .rows_per_block = cut.rows_each,
                            .columns = columns,
                            .amax = amax};
    by_wanted(amax, [&]<bool L>() { launch_backward<K, T, L>(a, stream); });
  });
  add_partial_sums({op.dw, partials, cut.blocks, columns, values}, stream);
  if (op.db) add_partial_sums({op.db, partials + columns, cut.blocks, columns, values}, stream);
}
}  // namespace athanor::cuda
