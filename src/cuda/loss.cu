// Softmax cross-entropy, a block per row of logits.
//   lse = log sum exp(z);  loss = lse - z_target;
//   dz = scale ((1 + 2 z_loss lse) softmax(z) - onehot(target)), in place of z.
// With a soft-cap z = cap tanh(x / cap), and dx = dz (1 - tanh^2) in place of x, by a kernel of its own.
// The first pass finds maximum and sum together [Milakov & Gimelshein 2018] and keeps the row in shared memory for the
// second, which writes the gradient; columns that do not fit (two blocks per multiprocessor) are read again, from L2.
// Memory bound: each logit is read and written once. Deterministic: the order of sums depends on the number of columns
// alone. Not timed on a GPU yet.
#include "cuda/loss.h"

#include <algorithm>
#include <limits>

#include "cuda/host_tools.h"
#include "cuda/ptx/ptx.h"
#include "cuda/reduce.h"
#include "cuda/vectors.h"

namespace athanor::cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kBatch = 4;  // 16-byte loads in flight per thread
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
  float z_loss, softcap;
};

// Replaces the values of columns past the vocabulary in a chunk at column c.
template <int E>
__device__ __forceinline__ void mask(float (&values)[E], int c, int vocab, float instead) {
  if (c + E <= vocab) return;
#pragma unroll
  for (int i = 0; i < E; ++i) values[i] = c + i < vocab ? values[i] : instead;
}

// e^x for x <= 0; results below the normal numbers are 0.
__device__ __forceinline__ float exp_fast(float x) { return ptx::exp2_approx(x * 0x1.715476p0f); }

// The soft-capped x, and the slope of the cap: 1 - tanh^2(u) = 4 e / (1 + e)^2, e = exp(-2 |u|), keeps its precision
// where tanh is close to 1.
__device__ __forceinline__ float soft_cap(float x, float cap) { return cap * tanhf(x / cap); }
__device__ __forceinline__ float cap_slope(float x, float cap) {
  const float e = expf(-2 * fabsf(x / cap));
  return 4 * e / ((1 + e) * (1 + e));
}

// A thread's running sum of e^(x - base), relative to its largest logit so far.
struct OnlineSum {
  float most = -kInf, sum = 0;

  __device__ __forceinline__ float base() const { return most == -kInf ? 0.f : most; }  // -inf - -inf would be NaN
  template <int E>
  __device__ __forceinline__ void add(const float (&x)[kBatch][E]) {
    float top = most;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
#pragma unroll
      for (int i = 0; i < E; ++i) top = fmaxf(top, x[b][i]);  // skips NaN, which reaches the sum below
    }
    if (top > most) {
      sum *= exp_fast(most - top);
      most = top;
    }
    const float from = base();
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
#pragma unroll
      for (int i = 0; i < E; ++i) sum += exp_fast(x[b][i] - from);
    }
  }
};

// Loads the chunks c, c + step, ... of a batch; -inf past the vocabulary.
template <bool kCapped, class T>
__device__ __forceinline__ void load_batch(float (&x)[kBatch][kVector<T>], const Logits<T>& a, const T* row, T* kept,
                                           int c, int step) {
  if (a.vectors) {
    uint4 raw[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) raw[b] = c + b * step < a.vocab ? ld16(row + c + b * step) : uint4{};
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (c + b * step < a.kept) st16(kept + c + b * step, raw[b]);
      T elements[kVector<T>];
      memcpy(static_cast<void*>(elements), &raw[b], sizeof raw[b]);
#pragma unroll
      for (int i = 0; i < kVector<T>; ++i) x[b][i] = to_float(elements[i]);
    }
  } else {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) load_chunk(x[b], row, c + b * step, a.vocab, false);
  }
#pragma unroll
  for (int b = 0; b < kBatch; ++b) {
    if constexpr (kCapped) {
#pragma unroll
      for (int i = 0; i < kVector<T>; ++i) x[b][i] = soft_cap(x[b][i], a.softcap);
    }
    mask(x[b], c + b * step, a.vocab, -kInf);
  }
}

struct Softmax {
  float base, factor;  // dz = factor e^(z - base), except at the target
  int target;
  float at_target;
};

template <bool kCapped, class T>
__device__ __forceinline__ void write_gradient(const Logits<T>& a, T* row, const T* kept, const Softmax& s) {
  constexpr int kElements = kVector<T>;
  const int step = static_cast<int>(blockDim.x) * kElements;
  for (int c = static_cast<int>(threadIdx.x) * kElements; c < a.columns; c += step) {
    float x[kElements] = {};
    if (c < a.vocab) {
      load_chunk(x, c < a.kept ? kept : row, c, a.columns, a.vectors);
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        if constexpr (kCapped)
          x[i] = exp_fast(soft_cap(x[i], a.softcap) - s.base) * s.factor * cap_slope(x[i], a.softcap);
        else
          x[i] = exp_fast(x[i] - s.base) * s.factor;
      }
    }
    if (s.target >= c && s.target < c + kElements) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = c + i == s.target ? s.at_target : x[i];
    }
    mask(x, c, a.vocab, 0.f);
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

template <class T, bool kCapped>
__global__ void __launch_bounds__(kMaxThreads, 2) cross_entropy(Logits<T> a) {
  SHARED(float, room, [32]);
  DYN_SMEM(raw);
  constexpr int kElements = kVector<T>;
  T* kept = reinterpret_cast<T*>(raw);
  T* row = a.logits + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.columns);
  const int target = a.targets[blockIdx.x];
  if (target < 0) {  // ignored
    if (threadIdx.x == 0) a.losses[blockIdx.x] = 0;
    if (a.scale) write_zeros(a, row);
    return;
  }
  // The thread whose chunks hold the target reads it before it writes. Kernels cannot throw: a target outside the
  // vocabulary makes the loss NaN, and the step is skipped.
  const bool owner = static_cast<int>(threadIdx.x) == target / kElements % static_cast<int>(blockDim.x);
  const float stored = owner && target < a.vocab ? to_float(row[target]) : __int_as_float(0x7fffffff);
  const float logit = kCapped ? soft_cap(stored, a.softcap) : stored;
  const int step = static_cast<int>(blockDim.x) * kElements;
  OnlineSum s;
  for (int c = static_cast<int>(threadIdx.x) * kElements; c < a.vocab; c += kBatch * step) {
    float x[kBatch][kElements];
    load_batch<kCapped>(x, a, row, kept, c, step);
    s.add(x);
  }
  const float before = s.base();
  s.most = block_reduce(s.most, room, Max{});
  const float sum = block_sum(s.sum * exp_fast(before - s.base()), room);
  const float loss = logf(sum) - (logit - s.base());
  if (owner) a.losses[blockIdx.x] = loss;
  if (!a.scale) return;
  const float scale = *a.scale * a.inv_count;
  const float z = a.z_loss == 0 ? 0.f : 2 * a.z_loss * (s.base() + logf(sum));
  const float at_target = expm1f(-loss) + z * expf(-loss);  // softmax = e^-loss
  const float slope = kCapped ? cap_slope(stored, a.softcap) : 1.f;
  write_gradient<kCapped>(a, row, kept, {s.base(), scale * (1 + z) / sum, target, scale * at_target * slope});
}

// ---- launcher

// Columns that fit into shared memory with two blocks per multiprocessor, in whole chunks.
template <class T>
int kept_columns(int vocab) {
  int device = 0, bytes = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  const int most = (bytes / 2 - (2 << 10)) / 16 * kVector<T>;  // CUDA reserves 1 KiB per block
  return std::min(round_up(vocab, kVector<T>), most);
}
}  // namespace

void run(const CrossEntropy& op, void*, cudaStream_t stream) {
  CHECK(!op.part, op.kName, ": no kernel for a part of the vocabulary");
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
    a.z_loss = op.z_loss;
    a.softcap = op.softcap;
    a.kept = a.vectors && op.grad ? kept_columns<T>(a.vocab) : 0;
    const size_t shared_bytes = static_cast<size_t>(std::max(a.kept, kVector<T>)) * sizeof(T);
    const int threads = std::min(kMaxThreads, round_up(div_ceil(columns, kVector<T>), 32));
    const LaunchConfig config{dim3(grid_size(op.logits.rows())), dim3(static_cast<unsigned>(threads)), shared_bytes,
                              stream};
    CUDA_CHECK(op.softcap > 0 ? launch(cross_entropy<T, true>, config, a) : launch(cross_entropy<T, false>, config, a));
  });
}
}  // namespace athanor::cuda
