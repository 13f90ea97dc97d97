// A teacher's top-k logits, and a student's loss against them, one block per row: ops/top_logits.h. Plain kernels: the
// k largest are found by k passes over a row, which comes from L2 after the first; the loss takes two passes, and one
// thread per top token. Deterministic: the order of sums depends only on the number of columns and top tokens. Not run
// on a GPU yet.
#include <algorithm>
#include <cmath>

#include "cuda/host_tools.h"
#include "cuda/kernels.h"
#include "cuda/logit_rows.h"
#include "cuda/pack.h"
#include "cuda/ptx/ptx.h"

namespace athanor::cuda {
namespace {

constexpr float kLeast = std::numeric_limits<float>::min();

template <class T>
struct TopRows {
  const T* logits;
  int32_t* ids;
  float *values, *rest;
  int k, vocab, columns;
  float inverse, softcap;
};

template <class T>
__global__ void __launch_bounds__(kRowThreads, 2) top_logits(TopRows<T> a) {
  ptx::wait_for_earlier_kernels();
  SHARED(unsigned long long, keys, [32]);
  SHARED(float, smem, [32]);
  const T* z = a.logits + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.columns);
  int32_t* ids = a.ids + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.k);
  float* values = a.values + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.k);
  const auto key = [&](int c) -> unsigned long long {
    const float x = to_float(z[c]) + 0.f;  // -0 becomes 0
    return top_key(__float_as_uint(x), std::isnan(x), static_cast<uint32_t>(c));
  };
  const auto raw = [&](unsigned long long found) { return to_float(z[0xffffffffu - static_cast<uint32_t>(found)]); };
  const auto logit = [&](unsigned long long found) { return capped(raw(found), a.softcap); };
  // Uses double, since differences of capped logits are small where tanh is close to 1.
  const auto exact = [&](float x) -> double {
    const double cap = static_cast<double>(a.softcap);
    return cap > 0 ? cap * tanh(static_cast<double>(x) / cap) : static_cast<double>(x);
  };
  const auto below = [&](unsigned long long last) {  // the largest key below `last`; 0: none
    unsigned long long most = 0;
    for (int c = static_cast<int>(threadIdx.x); c < a.vocab; c += static_cast<int>(blockDim.x)) {
      const unsigned long long each = key(c);
      if (each < last && each > most) most = each;
    }
    return block_reduce(most, keys, Max{});
  };
  unsigned long long last = ~0ull;
  float largest = 0;
  for (int j = 0; j < a.k; ++j) {
    last = below(last);
    const float x = raw(last);
    if (j == 0) largest = x;
    if (threadIdx.x != 0) continue;
    ids[j] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(last));
    values[j] = x == largest ? x - largest : static_cast<float>(exact(x) - exact(largest));
  }
  const unsigned long long next = below(last);
  if (next == 0 || logit(next) == -kInf) {
    if (threadIdx.x == 0) a.rest[blockIdx.x] = -kInf;
    return;
  }
  const float top = logit(next);
  const float sum = sum_over(a.vocab, smem, [&](int c) {
    return key(c) < last ? expf((capped(to_float(z[c]), a.softcap) - top) * a.inverse) : 0.f;
  });
  if (threadIdx.x == 0)
    a.rest[blockIdx.x] = static_cast<float>(exact(raw(next)) - exact(largest)) * a.inverse + logf(sum);
}

template <class T>
struct PickRows {
  T* logits;
  float *picked, *rest;
  const int32_t *ids, *targets;
  const float* max;
  Part part;
  int k, columns;
  float inverse, softcap;
};

// The logits of the top tokens are set to -inf while the other tokens are summed, and then restored.
template <class T>
__global__ void __launch_bounds__(kRowThreads, 2) pick_logits(PickRows<T> a) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, smem, [32]);
  const int step = static_cast<int>(blockDim.x);
  T* z = a.logits + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.columns);
  const int32_t* ids = a.ids + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.k);
  float* picked = a.picked + static_cast<size_t>(blockIdx.x) * static_cast<size_t>(a.k);
  const bool ignored = a.targets[blockIdx.x] < 0;
  for (int j = static_cast<int>(threadIdx.x); j < a.k; j += step) {
    const int column = ignored ? -1 : a.part.column(ids[j]);
    picked[j] = column < 0 ? 0.f : to_float(z[column]);
    if (column >= 0) z[column] = from_float<T>(-kInf);
  }
  if (ignored) {
    if (threadIdx.x == 0) a.rest[blockIdx.x] = 0;
    return;
  }
  __syncthreads();
  const float base = base_of(a.max[blockIdx.x], a.softcap);
  const float sum = sum_over(a.part.count, smem, [&](int c) {
    const float x = to_float(z[c]);
    return x == -kInf ? 0.f : expf((capped(x, a.softcap) - base) * a.inverse);
  });
  __syncthreads();  // all threads have read the row
  if (threadIdx.x == 0) a.rest[blockIdx.x] = sum;
  for (int j = static_cast<int>(threadIdx.x); j < a.k; j += step) {
    const int column = a.part.column(ids[j]);
    if (column >= 0) z[column] = from_float<T>(picked[j]);
  }
}

template <class T>
struct CachedRows {
  T* logits;
  float *losses, *divergences;
  const int32_t *targets, *ids;
  const float *scale, *values, *rest, *max, *sums, *at_target, *picked, *picked_rest;
  float inv_count;
  Part part;
  int k, columns;
  DistillLoss kind;
  float temperature, ce_weight, z_loss, softcap;
};

// Sign of q - p; 0 if one is NaN.
__device__ __forceinline__ float sign_of_difference(float q, float p) {
  return static_cast<float>(q > p) - static_cast<float>(q < p);
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, 2) cached_distilled_cross_entropy(CachedRows<T> a) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, smem, [32]);
  const int row = static_cast<int>(blockIdx.x), step = static_cast<int>(blockDim.x);
  T* z = a.logits + static_cast<size_t>(row) * static_cast<size_t>(a.columns);
  const auto of_row = static_cast<size_t>(row) * static_cast<size_t>(a.k);
  const int32_t* ids = a.ids + of_row;
  const float *values = a.values + of_row, *picked = a.picked + of_row;
  const int target = a.targets[row];
  if (target < 0) {  // ignored row
    if (threadIdx.x == 0) a.losses[row] = a.divergences[row] = 0;
    for (int c = static_cast<int>(threadIdx.x); c < a.columns; c += step) z[c] = from_float<T>(0.f);
    return;
  }
  const float base = base_of(a.max[row], a.softcap), inverse = 1 / a.temperature;
  const float cold_sum = a.sums[row], loss = logf(cold_sum) - a.at_target[row];
  const auto student = [&](float x) { return (capped(x, a.softcap) - base) * inverse; };
  const float q_rest = a.picked_rest[row], p_rest = expf(a.rest[row]);
  const float log_q_sum = logf(q_rest + sum_over(a.k, smem, [&](int j) { return expf(student(picked[j])); }));
  const float log_p_sum = logf(p_rest + sum_over(a.k, smem, [&](int j) { return expf(values[j] * inverse); }));
  const float log_q_rest = logf(fmaxf(q_rest, kLeast)) - log_q_sum, log_p_rest = a.rest[row] - log_p_sum;
  const bool forward = a.kind == DistillLoss::kl, sorted = a.kind == DistillLoss::uld;
  // A term of the divergence, given both probabilities and their logarithms.
  const auto term = [&](float q, float log_q, float p, float log_p) {
    return sorted ? fabsf(q - p) : forward ? weighted(p, log_p - log_q) : weighted(q, log_q - log_p);
  };
  const auto log_q_of = [&](int j) { return student(picked[j]) - log_q_sum; };
  const auto log_p_of = [&](int j) { return values[j] * inverse - log_p_sum; };
  float between =
      sum_over(a.k, smem, [&](int j) { return term(expf(log_q_of(j)), log_q_of(j), expf(log_p_of(j)), log_p_of(j)); });
  const float q_of_rest = q_rest * expf(-log_q_sum);
  between += term(q_of_rest, log_q_rest, expf(log_p_rest), log_p_rest);
  float signed_q = 0, rest_share = q_rest > 0 ? log_q_rest - log_p_rest - between : 0.f;
  if (sorted) {
    const bool taught = values[0] > -kInf;  // else p is NaN
    signed_q = sum_over(
        a.k, smem, [&](int j) { return sign_of_difference(expf(log_q_of(j)), expf(log_p_of(j))) * expf(log_q_of(j)); });
    const float rest_sign = sign_of_difference(q_of_rest, expf(log_p_rest));
    signed_q = taught ? signed_q + rest_sign * q_of_rest : 0.f;
    between = taught ? between : 0.f;
    rest_share = rest_sign - signed_q;
  }
  if (threadIdx.x == 0) {
    a.losses[row] = loss;
    a.divergences[row] = a.temperature * a.temperature * between;
  }
  const float scale = *a.scale * a.inv_count, z_weight = 2 * a.z_loss * (base + logf(cold_sum));
  const auto gradient = [&](float x, bool is_target, float of_teacher) {
    const float hard = is_target ? a.ce_weight * expm1f(-loss) + z_weight * expf(-loss)
                                 : (a.ce_weight + z_weight) * expf(capped(x, a.softcap) - base) / cold_sum;
    return from_float<T>(scale * slope(x, a.softcap) * (a.temperature * of_teacher + hard));
  };
  // Kernels cannot throw: a target outside the vocabulary made its logit NaN (LogitSums).
  const int target_column = a.part.column(target);
  for (int c = static_cast<int>(threadIdx.x); c < a.columns; c += step) {
    if (c >= a.part.count) {
      z[c] = from_float<T>(0.f);
      continue;
    }
    const float x = to_float(z[c]), log_q = student(x) - log_q_sum;
    const float of_teacher = forward ? expf(log_q) - expf(log_q + (log_p_rest - log_q_rest)) : expf(log_q) * rest_share;
    z[c] = gradient(x, c == target_column, of_teacher);
  }
  __syncthreads();  // the loop above also wrote the top tokens, which are written again
  for (int j = static_cast<int>(threadIdx.x); j < a.k; j += step) {
    const int column = a.part.column(ids[j]);
    if (column < 0) continue;
    const float log_q = log_q_of(j), log_p = log_p_of(j), q = expf(log_q), p = expf(log_p);
    const float of_teacher = sorted    ? q * (sign_of_difference(q, p) - signed_q)
                             : forward ? q - p
                                       : weighted(q, log_q - log_p - between);
    z[column] = gradient(picked[j], column == target_column, of_teacher);
  }
}

}  // namespace

void run(const TopLogits& op, void*, cudaStream_t stream) {
  if (op.logits.rows() == 0) return;
  const int columns = checked_columns(op.kName, op.logits);
  by_type(op.logits.dtype, [&]<class T>() {
    const TopRows<T> a{.logits = data<T>(op.logits),
                       .ids = data<int32_t>(op.ids),
                       .values = data<float>(op.values),
                       .rest = data<float>(op.rest),
                       .k = static_cast<int>(op.ids.cols()),
                       .vocab = static_cast<int>(op.vocab),
                       .columns = columns,
                       .inverse = 1 / op.temperature,
                       .softcap = op.softcap};
    CUDA_CHECK(launch(top_logits<T>, block_per_row(op.logits.rows(), columns, stream), a));
  });
}

void run(const PickLogits& op, void*, cudaStream_t stream) {
  if (op.logits.rows() == 0) return;
  const int columns = checked_columns(op.kName, op.logits);
  by_type(op.logits.dtype, [&]<class T>() {
    const PickRows<T> a{.logits = data<T>(op.logits),
                        .picked = data<float>(op.picked),
                        .rest = data<float>(op.picked_rest),
                        .ids = data<int32_t>(op.ids),
                        .targets = data<int32_t>(op.targets),
                        .max = data<float>(op.max),
                        .part = part_of(op.part),
                        .k = static_cast<int>(op.ids.cols()),
                        .columns = columns,
                        .inverse = 1 / op.temperature,
                        .softcap = op.softcap};
    CUDA_CHECK(launch(pick_logits<T>, block_per_row(op.logits.rows(), columns, stream), a));
  });
}

void run(const CachedDistilledCrossEntropy& op, void*, cudaStream_t stream) {
  const int64_t rows = op.logits.rows();
  if (rows == 0) return;
  const int columns = checked_columns(op.kName, op.logits);
  const float* sums = data<float>(op.sums);
  by_type(op.logits.dtype, [&]<class T>() {
    const CachedRows<T> a{.logits = data<T>(op.logits),
                          .losses = data<float>(op.losses),
                          .divergences = data<float>(op.divergences),
                          .targets = data<int32_t>(op.targets),
                          .ids = data<int32_t>(op.ids),
                          .scale = data<float>(op.scale),
                          .values = data<float>(op.values),
                          .rest = data<float>(op.rest),
                          .max = data<float>(op.max),
                          .sums = sums,
                          .at_target = sums + rows,
                          .picked = data<float>(op.picked),
                          .picked_rest = data<float>(op.picked_rest),
                          .inv_count = op.inv_count,
                          .part = part_of(op.part),
                          .k = static_cast<int>(op.ids.cols()),
                          .columns = columns,
                          .kind = op.kind,
                          .temperature = op.temperature,
                          .ce_weight = op.ce_weight,
                          .z_loss = op.z_loss,
                          .softcap = op.softcap};
    CUDA_CHECK(launch(cached_distilled_cross_entropy<T>, block_per_row(rows, columns, stream), a));
  });
}
}  // namespace athanor::cuda
