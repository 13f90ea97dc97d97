// Softmax cross-entropy, one block per row of logits.
//   lse = log sum exp(z);  loss = lse - z_target;
//   dz = scale ((1 + 2 z_loss lse) softmax(z) - onehot(target)), in place of z.
// With a soft-cap z = cap tanh(x / cap), and dx = dz (1 - tanh^2) in place of x, by separate instantiations of the
// kernels.
// With a sharded vocabulary, one kernel finds the maximum of a row's shard, the next one the shard's sum and the
// target's logit, and the last, given the values of all shards together, reads each logit once.
// The first pass finds maximum and sum together [Milakov & Gimelshein 2018] and keeps the row in shared memory for the
// second, which writes the gradient; columns that do not fit (two blocks per SM) are read again, from L2.
// Memory bound: each logit is read and written once. Deterministic: the order of sums depends only on the number of
// columns. Not timed on a GPU yet.
#include <algorithm>

#include "cuda/host_tools.h"
#include "cuda/kernels.h"
#include "cuda/logit_rows.h"
#include "cuda/pack.h"
#include "cuda/ptx/ptx.h"
#include "cuda/vectors.h"

namespace athanor::cuda {
namespace {

constexpr int kBatch = 4;  // 16-byte loads in flight per thread

// ---- device helpers

// Additional targets of each row, and the weight of each in the loss.
struct Ahead {
  const int32_t* targets = nullptr;  // [n, count]; negative: none
  const float* weights = nullptr;    // [count]
  int count = 0;
};

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
  Ahead ahead = {};
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

// A thread's running sum of e^(x - base), where base is its maximum logit so far.
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

// The additional target that a thread writes. If several targets of a row share a column, the first one's thread has
// it.
struct AheadTarget {
  int column = -1;
  float logit = 0, weight = 0;  // weight: sum over the row's targets with this column
};

// Finds this thread's additional target before any thread writes to the row. first: the first token of this rank's part
// of the vocabulary. total: receives the sum of the weights of the row's targets.
template <class T>
__device__ __forceinline__ AheadTarget ahead_target(const Logits<T>& a, const T* row, int first, float& total) {
  const int32_t* targets = a.ahead.targets + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.ahead.count);
  const int mine = static_cast<int>(threadIdx.x);
  AheadTarget found;
  total = 0;
  for (int j = 0; j < a.ahead.count; ++j) total += targets[j] < 0 ? 0.f : a.ahead.weights[j];
  if (mine >= a.ahead.count) return found;
  const int token = targets[mine], column = token - first;
  if (token < 0 || column < 0 || column >= a.vocab) return found;
  for (int j = 0; j < a.ahead.count; ++j) {
    if (targets[j] != token) continue;
    if (j < mine) return {};
    found.weight += a.ahead.weights[j];
  }
  found.column = column, found.logit = to_float(row[column]);
  return found;
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

// Gradient of a row; the caller sets the target's column. base, sum and loss are those of the whole vocabulary. ahead:
// the sum of the weights of additional targets.
template <class T>
__device__ __forceinline__ Softmax gradient_of(const Logits<T>& a, float base, float sum, float loss, float ahead) {
  const float scale = *a.scale * a.inv_count;
  const float z = (a.z_loss == 0 ? 0.f : 2 * a.z_loss * (base + logf(sum))) + ahead;
  const float at_target = expm1f(-loss) + z * expf(-loss);  // softmax = e^-loss
  return {base, scale * (1 + z) / sum, -1, scale * at_target};
}

// Called by all threads after write_gradient(), with the same `s`. target: the column of the row's own target.
template <bool kCapped, class T>
__device__ __forceinline__ void write_ahead(const Logits<T>& a, T* row, const Softmax& s, const AheadTarget& t,
                                            int target) {
  __syncthreads();
  if (t.column < 0) return;
  const float logit = kCapped ? soft_cap(t.logit, a.softcap) : t.logit;
  const float hot = t.weight + (t.column == target ? 1.f : 0.f);
  float gradient = exp_fast(logit - s.base) * s.factor - hot * *a.scale * a.inv_count;
  if constexpr (kCapped) gradient *= cap_slope(t.logit, a.softcap);
  row[t.column] = from_float<T>(gradient);
}

// ---- kernels

template <class T, bool kCapped, bool kAhead>
__global__ void __launch_bounds__(kRowThreads, 2) cross_entropy(Logits<T> a) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, smem, [32]);
  DYN_SMEM(raw);
  constexpr int kElements = kVector<T>;
  T* kept = reinterpret_cast<T*>(raw);
  T* row = a.logits + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.columns);
  const int target = a.targets[blockIdx.x];
  if (target < 0) {  // ignored row
    if (threadIdx.x == 0) a.losses[blockIdx.x] = 0;
    if (a.scale) write_zeros(a, row);
    return;
  }
  // The thread whose chunks hold the target reads the target's logit before it overwrites it. Kernels cannot throw: a
  // target outside the vocabulary makes the loss NaN, and the step is skipped.
  const bool owner = static_cast<int>(threadIdx.x) == target / kElements % static_cast<int>(blockDim.x);
  const float stored = owner && target < a.vocab ? to_float(row[target]) : __int_as_float(0x7fffffff);
  const float logit = kCapped ? soft_cap(stored, a.softcap) : stored;
  float ahead_weights = 0;
  AheadTarget ahead;
  if constexpr (kAhead) {
    ahead = ahead_target(a, row, 0, ahead_weights);
    __syncthreads();  // all have read what others will write
  }
  const int step = static_cast<int>(blockDim.x) * kElements;
  OnlineSum s;
  for (int c = static_cast<int>(threadIdx.x) * kElements; c < a.vocab; c += kBatch * step) {
    float x[kBatch][kElements];
    load_batch<kCapped>(x, a, row, kept, c, step);
    s.add(x);
  }
  const float before = s.base();
  s.most = block_reduce(s.most, smem, Max{});
  const float sum = block_sum(s.sum * exp_fast(before - s.base()), smem);
  const float loss = logf(sum) - (logit - s.base());
  if (owner) a.losses[blockIdx.x] = loss;
  if (!a.scale) return;
  Softmax found = gradient_of(a, s.base(), sum, loss, ahead_weights);
  found.target = target;
  if constexpr (kCapped) found.at_target *= cap_slope(stored, a.softcap);
  write_gradient<kCapped>(a, row, kept, found);
  if constexpr (kAhead) write_ahead<kCapped>(a, row, found, ahead, target);
}

// ---- kernels for a sharded vocabulary

// Statistics of each row over the whole vocabulary, reduced over its shards.
struct PartSums {
  const float *max, *sums, *at_target;  // [n]; sums and at_target are relative to max
  int first;                            // first token of this shard
};

// The offset of a row's exponents: its soft-capped maximum.
template <bool kCapped>
__device__ __forceinline__ float base_of(float max, float softcap) {
  const float capped = kCapped ? soft_cap(max, softcap) : max;
  return capped == -kInf ? 0.f : capped;  // -inf - -inf would be NaN
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, 2) row_max(Logits<T> a, float* max) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, smem, [32]);
  constexpr int kElements = kVector<T>;
  const T* row = a.logits + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.columns);
  const int step = static_cast<int>(blockDim.x) * kElements;
  const int begin = static_cast<int>(threadIdx.x) * kElements;
  float most = -kInf;
  const auto add = [&](float(&x)[kElements], int c) {
    mask(x, c, a.vocab, -kInf);
#pragma unroll
    for (int i = 0; i < kElements; ++i) most = fmaxf(most, x[i]);  // skips NaN, which reaches the sum
  };
  for (int c = begin; a.vectors && c < a.vocab; c += kBatch * step) {
    Pack<T, kElements> packs[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (c + b * step < a.vocab) packs[b] = load_pack<kElements>(row + c + b * step);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (c + b * step >= a.vocab) break;
      float x[kElements];
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = packs[b][i];
      add(x, c + b * step);
    }
  }
  for (int c = begin; !a.vectors && c < a.vocab; c += step) {
    float x[kElements];
    load_chunk(x, row, c, a.vocab, false);
    add(x, c);
  }
  most = block_reduce(most, smem, Max{});
  if (threadIdx.x == 0) max[blockIdx.x] = most;
}

// A target outside the whole vocabulary makes the target's logit NaN, and so the loss.
template <class T, bool kCapped>
__global__ void __launch_bounds__(kRowThreads, 2) logit_sums(Logits<T> a, const float* max, int first, int total) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, smem, [32]);
  constexpr int kElements = kVector<T>;
  const T* row = a.logits + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.columns);
  const float base = base_of<kCapped>(max[blockIdx.x], a.softcap);
  const int step = static_cast<int>(blockDim.x) * kElements;
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x) * kElements; c < a.vocab; c += kBatch * step) {
    float x[kBatch][kElements];
    load_batch<kCapped>(x, a, row, static_cast<T*>(nullptr), c, step);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) sum += exp_fast(x[b][i] - base);
    }
  }
  sum = block_sum(sum, smem);
  if (threadIdx.x != 0) return;
  const int target = a.targets[blockIdx.x], column = Part{first, a.vocab}.column(target);
  float logit = target < total ? 0.f : __int_as_float(0x7fffffff);
  if (column >= 0) logit = (kCapped ? soft_cap(to_float(row[column]), a.softcap) : to_float(row[column])) - base;
  a.losses[blockIdx.x] = sum;
  a.losses[gridDim.x + blockIdx.x] = logit;
}

template <class T, bool kCapped, bool kAhead>
__global__ void __launch_bounds__(kRowThreads, 2) cross_entropy_of_part(Logits<T> a, PartSums all) {
  ptx::wait_for_earlier_kernels();
  T* row = a.logits + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.columns);
  const int target = a.targets[blockIdx.x];
  if (target < 0) {  // ignored row
    if (threadIdx.x == 0) a.losses[blockIdx.x] = 0;
    if (a.scale) write_zeros(a, row);
    return;
  }
  const float base = base_of<kCapped>(all.max[blockIdx.x], a.softcap), sum = all.sums[blockIdx.x];
  const float loss = logf(sum) - all.at_target[blockIdx.x];
  if (threadIdx.x == 0) a.losses[blockIdx.x] = loss;
  if (!a.scale) return;
  float ahead_weights = 0;
  AheadTarget ahead;
  if constexpr (kAhead) {
    ahead = ahead_target(a, row, all.first, ahead_weights);
    __syncthreads();  // all have read what others will write
  }
  Softmax found = gradient_of(a, base, sum, loss, ahead_weights);
  found.target = Part{all.first, a.vocab}.column(target);
  if constexpr (kCapped) {  // the thread that will overwrite the target's logit reads it first
    const int owner = found.target / kVector<T> % static_cast<int>(blockDim.x);
    if (found.target >= 0 && owner == static_cast<int>(threadIdx.x))
      found.at_target *= cap_slope(to_float(row[found.target]), a.softcap);
  }
  write_gradient<kCapped>(a, row, static_cast<const T*>(row), found);
  if constexpr (kAhead) write_ahead<kCapped>(a, row, found, ahead, found.target);
}

// ---- losses by source

// One block per source, which reads all rows: a few for each thread.
__global__ void __launch_bounds__(kRowThreads)
    add_source_losses(double* sums, const float* losses, const int32_t* targets, const int32_t* sources,
                      SequenceRows rows, int64_t n) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  double sum = 0, count = 0;
  for (int64_t i = threadIdx.x; i < n; i += kRowThreads) {
    if (targets[i] < 0 || sources[rows.sequence(i)] != static_cast<int>(blockIdx.x)) continue;
    sum += SourceLosses::rounded(losses[i]);
    ++count;
  }
  sum = block_reduce(sum, smem, Plus{});
  count = block_reduce(count, smem, Plus{});
  if (threadIdx.x > 0) return;
  sums[blockIdx.x] += sum;
  sums[gridDim.x + blockIdx.x] += count;
}

// ---- launchers

// Columns that fit into shared memory with two blocks per SM, in whole chunks.
template <class T>
int kept_columns(int vocab) {
  int device = 0, bytes = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  const int most = (bytes / 2 - (2 << 10)) / 16 * kVector<T>;  // CUDA reserves 1 KiB per block
  return std::min(round_up(vocab, kVector<T>), most);
}

template <class T>
Logits<T> logits_of(const char* op, const Tensor& logits, int64_t vocab) {
  const int columns = checked_columns(op, logits);
  Logits<T> a{.logits = data<T>(logits), .vocab = static_cast<int>(vocab), .columns = columns};
  a.vectors = rows_are_vectors(columns, a.logits);
  return a;
}

// One block per row.
template <class T>
LaunchConfig of_rows(const Logits<T>& a, int64_t rows, size_t shared_bytes, cudaStream_t stream) {
  const int threads = std::min(kRowThreads, round_up(div_ceil(a.columns, kVector<T>), 32));
  return {dim3(grid_size(rows)), dim3(static_cast<unsigned>(threads)), shared_bytes, stream};
}

// Calls fn<capped, with targets ahead>().
template <class Fn>
void by_options(const CrossEntropy& op, const Fn& fn) {
  const auto with = [&]<bool kCapped>() {
    op.ahead ? fn.template operator()<kCapped, true>() : fn.template operator()<kCapped, false>();
  };
  op.softcap > 0 ? with.template operator()<true>() : with.template operator()<false>();
}

int token(int64_t first) {
  CHECK(first < int64_t{1} << 31, "token ", first, " is beyond 32-bit indices");
  return static_cast<int>(first);
}
}  // namespace

void run(const SourceLosses& op, void*, cudaStream_t stream) {
  const int64_t n = op.losses.numel(), count = op.sums.cols();
  if (n == 0) return;
  const LaunchConfig config{dim3(grid_size(count)), dim3(kRowThreads), 0, stream};
  CUDA_CHECK(launch(add_source_losses, config, data<double>(op.sums), data<float>(op.losses), data<int32_t>(op.targets),
                    data<int32_t>(op.sources), op.rows, n));
}

void run(const RowMax& op, void*, cudaStream_t stream) {
  if (op.x.rows() == 0) return;
  by_type(op.x.dtype, [&]<class T>() {
    const auto a = logits_of<T>(op.kName, op.x, op.columns);
    CUDA_CHECK(launch(row_max<T>, of_rows(a, op.x.rows(), 0, stream), a, data<float>(op.max)));
  });
}

void run(const LogitSums& op, void*, cudaStream_t stream) {
  const int64_t rows = op.logits.rows();
  if (rows == 0) return;
  by_type(op.logits.dtype, [&]<class T>() {
    auto a = logits_of<T>(op.kName, op.logits, op.part.count);
    a.losses = data<float>(op.sums), a.targets = data<int32_t>(op.targets), a.softcap = op.softcap;
    const LaunchConfig config = of_rows(a, rows, 0, stream);
    const float* max = data<float>(op.max);
    const int first = token(op.part.first), total = token(op.part.total);
    CUDA_CHECK(op.softcap > 0 ? launch(logit_sums<T, true>, config, a, max, first, total)
                              : launch(logit_sums<T, false>, config, a, max, first, total));
  });
}

void run(const CrossEntropy& op, void*, cudaStream_t stream) {
  const int64_t rows = op.logits.rows();
  if (rows == 0) return;
  by_type(op.logits.dtype, [&]<class T>() {
    auto a = logits_of<T>(op.kName, op.logits, op.vocab);
    a.losses = data<float>(op.losses), a.targets = data<int32_t>(op.targets);
    a.scale = op.grad ? data<float>(op.scale) : nullptr;
    a.inv_count = op.inv_count, a.z_loss = op.z_loss, a.softcap = op.softcap;
    if (op.ahead) a.ahead = {data<int32_t>(op.ahead), data<float>(op.ahead_weights), static_cast<int>(op.ahead.cols())};
    if (op.part) {
      const float* sums = data<float>(op.sums);
      const PartSums all{data<float>(op.max), sums, sums + rows, token(op.part.first)};
      const LaunchConfig config = of_rows(a, rows, 0, stream);
      by_options(op, [&]<bool kCapped, bool kAhead>() {
        CUDA_CHECK(launch(cross_entropy_of_part<T, kCapped, kAhead>, config, a, all));
      });
      return;
    }
    a.kept = a.vectors && op.grad ? kept_columns<T>(a.vocab) : 0;
    const size_t shared_bytes = static_cast<size_t>(std::max(a.kept, kVector<T>)) * sizeof(T);
    const LaunchConfig config = of_rows(a, rows, shared_bytes, stream);
    by_options(op,
               [&]<bool kCapped, bool kAhead>() { CUDA_CHECK(launch(cross_entropy<T, kCapped, kAhead>, config, a)); });
  });
}
}  // namespace athanor::cuda
