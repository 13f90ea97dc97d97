// Softmax cross-entropy, a block per row of logits.
//   loss = log sum exp(z) - z_target;  dz = scale (softmax(z) - onehot(target)), written over z.
// The first pass finds maximum and sum of exponentials together [Milakov & Gimelshein 2018] and leaves the row in shared
// memory, the second writes the gradient from there: each logit is read once and written once. What does not fit beside
// a second block of the multiprocessor is read again, from the L2 cache. Memory bound; not timed on a GPU yet.
// Deterministic: the order of sums follows from the number of columns alone.
#include "cuda/loss.h"

#include <algorithm>
#include <limits>

#include "cuda/host_tools.h"
#include "cuda/reduce.h"
#include "cuda/vectors.h"

namespace athanor::cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kBatch = 4;  // loads of 16 bytes on their way per thread
constexpr float kInf = std::numeric_limits<float>::infinity();

// ---- device helpers

template <class T>
struct Logits {
  T* logits;
  float* losses;
  const int32_t* targets;
  const float* scale;  // null without gradient
  float inv_count;
  int vocab, columns;
  int kept;  // columns that stay in shared memory between the passes
  bool vectors;
};

// values = row[c .. c + E), -inf from column vocab on.
template <int E>
__device__ __forceinline__ void mask(float (&values)[E], int c, int vocab) {
  if (c + E <= vocab) return;
#pragma unroll
  for (int i = 0; i < E; ++i) values[i] = c + i < vocab ? values[i] : -kInf;
}

// e^(x - base) summed over what a thread has seen, relative to its largest logit.
struct OnlineSum {
  float most = -kInf, sum = 0;

  __device__ __forceinline__ float base() const { return most == -kInf ? 0.f : most; }  // -inf - -inf would be NaN
  template <int B, int E>
  __device__ __forceinline__ void add(const float (&x)[B][E]) {
    float top = most;
#pragma unroll
    for (int b = 0; b < B; ++b) {
#pragma unroll
      for (int i = 0; i < E; ++i) top = fmaxf(top, x[b][i]);  // skips NaN, which reaches the sum below
    }
    if (top > most) {
      sum *= __expf(most - top);
      most = top;
    }
    const float from = base();
#pragma unroll
    for (int b = 0; b < B; ++b) {
#pragma unroll
      for (int i = 0; i < E; ++i) sum += __expf(x[b][i] - from);
    }
  }
};

// The chunks c, c + step, ... of a batch, all of them whole.
template <class T>
__device__ __forceinline__ void load_batch(float (&x)[kBatch][kVector<T>], const Logits<T>& a, const T* row, T* kept,
                                           int c, int step) {
  uint4 raw[kBatch];
#pragma unroll
  for (int b = 0; b < kBatch; ++b) raw[b] = ld16(row + c + b * step);
#pragma unroll
  for (int b = 0; b < kBatch; ++b) {
    if (c + b * step < a.kept) st16(kept + c + b * step, raw[b]);
    T elements[kVector<T>];
    memcpy(static_cast<void*>(elements), &raw[b], sizeof raw[b]);
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) x[b][i] = to_float(elements[i]);
  }
}

// Maximum and sum over the row, of this thread's chunks.
template <class T>
__device__ __forceinline__ OnlineSum read_row(const Logits<T>& a, const T* row, T* kept) {
  constexpr int kElements = kVector<T>;
  const int step = static_cast<int>(blockDim.x) * kElements;
  OnlineSum s;
  int c = static_cast<int>(threadIdx.x) * kElements;
  if (a.vectors) {
    for (; c + (kBatch - 1) * step + kElements <= a.vocab; c += kBatch * step) {
      float x[kBatch][kElements];
      load_batch(x, a, row, kept, c, step);
      s.add(x);
    }
  }
  for (; c < a.vocab; c += step) {
    float x[1][kElements];
    load_chunk(x[0], row, c, a.columns, a.vectors);
    if (c < a.kept) store_chunk(kept, x[0], c, a.columns, true);
    mask(x[0], c, a.vocab);
    s.add(x);
  }
  return s;
}

struct Softmax {
  float base, factor;  // dz = factor e^(z - base), but at the target:
  int target;
  float at_target;
};

template <class T>
__device__ __forceinline__ void write_gradient(const Logits<T>& a, T* row, const T* kept, const Softmax& s) {
  constexpr int kElements = kVector<T>;
  const int step = static_cast<int>(blockDim.x) * kElements;
  for (int c = static_cast<int>(threadIdx.x) * kElements; c < a.columns; c += step) {
    float x[kElements] = {};
    if (c < a.vocab) {
      load_chunk(x, c < a.kept ? kept : row, c, a.columns, a.vectors);
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = __expf(x[i] - s.base) * s.factor;
    }
    if (s.target >= c && s.target < c + kElements) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = c + i == s.target ? s.at_target : x[i];
    }
    if (c + kElements > a.vocab) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = c + i < a.vocab ? x[i] : 0.f;
    }
    store_chunk(row, x, c, a.columns, a.vectors);
  }
}

template <class T>
__device__ __forceinline__ void write_zeros(const Logits<T>& a, T* row) {
  constexpr int kElements = kVector<T>;
  const float zeros[kElements] = {};
  const int step = static_cast<int>(blockDim.x) * kElements;
  for (int c = static_cast<int>(threadIdx.x) * kElements; c < a.columns; c += step)
    store_chunk(row, zeros, c, a.columns, a.vectors);
}

// ---- kernel

template <class T>
__global__ void __launch_bounds__(kMaxThreads, 2) cross_entropy(Logits<T> a) {
  SHARED(float, room, [32]);
  DYN_SMEM(raw);
  T* kept = reinterpret_cast<T*>(raw);
  T* row = a.logits + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.columns);
  const int target = a.targets[blockIdx.x];
  if (target < 0) {  // ignored
    if (threadIdx.x == 0) a.losses[blockIdx.x] = 0;
    if (a.scale) write_zeros(a, row);
    return;
  }
  // Nobody can throw here: a target outside the vocabulary makes the loss NaN, and the step is skipped.
  const float logit = target < a.vocab ? to_float(row[target]) : __int_as_float(0x7fffffff);
  OnlineSum s = read_row(a, row, kept);
  const float before = s.base();
  s.most = block_reduce(s.most, room, Max{});
  const float sum = block_sum(s.sum * __expf(before - s.base()), room);
  const float loss = logf(sum) - (logit - s.base());
  if (threadIdx.x == 0) a.losses[blockIdx.x] = loss;
  if (!a.scale) return;
  const float scale = *a.scale * a.inv_count;
  write_gradient(a, row, kept, {s.base(), scale / sum, target, scale * expm1f(-loss)});  // softmax = e^-loss
}

// ---- launcher

// Columns that two blocks of a multiprocessor can keep, in whole chunks.
template <class T>
int kept_columns(int vocab) {
  int device = 0, bytes = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  const int most = (bytes / 2 - (2 << 10)) / 16 * kVector<T>;  // 1 KiB per block is the system's
  return std::min(round_up(vocab, kVector<T>), most);
}
}  // namespace

void run(const CrossEntropy& op, void*, cudaStream_t stream) {
  const int columns = checked_columns("cross entropy", op.logits);
  if (op.logits.rows() == 0) return;
  by_type(op.logits.dtype, [&]<class T>() {
    Logits<T> a{data<T>(op.logits),
                data<float>(op.losses),
                data<int32_t>(op.targets),
                op.grad ? data<float>(op.scale) : nullptr,
                op.inv_count,
                static_cast<int>(op.vocab),
                columns};
    a.vectors = rows_are_vectors(columns, a.logits);
    a.kept = a.vectors && op.grad ? kept_columns<T>(a.vocab) : 0;
    const size_t shared_bytes = static_cast<size_t>(a.kept) * sizeof(T);
    if (shared_bytes > 48 << 10) CUDA_CHECK(allow_shared_bytes(cross_entropy<T>, shared_bytes));
    const int threads = std::min(kMaxThreads, round_up(div_ceil(columns, kVector<T>), 32));
    const LaunchConfig config{dim3(grid_size(op.logits.rows())), dim3(static_cast<unsigned>(threads)), shared_bytes,
                              stream};
    CUDA_CHECK(launch(cross_entropy<T>, config, a));
  });
}
}  // namespace athanor::cuda
