// Cross-entropy and distillation loss (DistilledCrossEntropy of ops/loss.h), one block per row. A pass over both rows
// finds the maxima, one the sums, one the divergence, and the last writes the gradient in place of the logits. Memory
// bound; after the first pass rows come from L2. With a sharded vocabulary, DistillSums computes the sums of one shard.
// Deterministic: the order of sums depends only on the number of columns. Not run on a GPU yet.
#include <algorithm>

#include "cuda/host_tools.h"
#include "cuda/kernels.h"
#include "cuda/logit_rows.h"
#include "cuda/pack.h"
#include "cuda/ptx/ptx.h"

namespace athanor::cuda {
namespace {

// Row sums over the whole vocabulary, reduced over its shards. Unused if the vocabulary is not sharded; `vocab` is then
// its size.
struct SumsOfParts {
  const float *max, *cold_sums, *at_target, *teacher_max, *y_sums, *u_sums, *cross;
  Part part;  // this shard; count 0: not sharded
};

template <class T>
struct Rows {
  T* logits;
  const T* teacher;
  float *losses, *divergences;
  const int32_t* targets;
  const float* scale;
  float inv_count;
  int vocab, columns, teacher_columns;
  SumsOfParts all;
  bool forward;
  float temperature, ce_weight, z_loss, softcap, teacher_softcap;
};

// Softmax of a row of logits at a temperature; log_sum is the logarithm of its denominator.
template <class T>
struct Softmax {
  const T* x;
  float base, cap, inverse, log_sum;
  __device__ __forceinline__ float log_of(int c) const {
    return (capped(to_float(x[c]), cap) - base) * inverse - log_sum;
  }
};

template <class T>
__device__ __forceinline__ Softmax<T> softmax_of(const T* x, int n, float cap, float inverse, float* smem) {
  float most = -kInf;
  for (int c = static_cast<int>(threadIdx.x); c < n; c += static_cast<int>(blockDim.x))
    most = fmaxf(most, to_float(x[c]));
  Softmax<T> s{x, base_of(block_reduce(most, smem, Max{}), cap), cap, inverse, 0};
  s.log_sum = logf(sum_over(n, smem, [&](int c) { return expf((capped(to_float(x[c]), cap) - s.base) * inverse); }));
  return s;
}

// Values from which a row's gradient is computed.
template <class T>
struct Both {
  Softmax<T> q, p;  // softmax of student and of teacher
  float cold_sum;   // sum of exp(z - q.base)
  float between;    // divergence, divided by the square of the temperature
  float at_target;  // the target's logit, relative to q.base
  int target;       // column of the target; negative: in another shard
};

template <class T>
__device__ __forceinline__ Both<T> of_all_parts(const Rows<T>& a, const T* z, const T* v, int row) {
  const SumsOfParts& all = a.all;
  const float inverse = 1 / a.temperature, log_y = logf(all.y_sums[row]), log_u = logf(all.u_sums[row]);
  return {
      {z, base_of(all.max[row], a.softcap), a.softcap, inverse, log_y},
      {v, base_of(all.teacher_max[row], a.teacher_softcap), a.teacher_softcap, inverse, log_u},
      all.cold_sums[row],
      a.forward ? all.cross[row] / all.u_sums[row] - log_u + log_y : all.cross[row] / all.y_sums[row] - log_y + log_u,
      all.at_target[row],
      all.part.column(a.targets[row])};
}

template <class T>
__device__ __forceinline__ Both<T> of_whole_row(const Rows<T>& a, const T* z, const T* v, int target, float* smem) {
  Both<T> b{softmax_of<T>(z, a.vocab, a.softcap, 1 / a.temperature, smem),
            softmax_of<T>(v, a.vocab, a.teacher_softcap, 1 / a.temperature, smem),
            0,
            0,
            0,
            target};
  b.cold_sum = sum_over(a.vocab, smem, [&](int c) { return expf(capped(to_float(z[c]), a.softcap) - b.q.base); });
  b.between = sum_over(a.vocab, smem, [&](int c) {
    const float log_q = b.q.log_of(c), log_p = b.p.log_of(c);
    return a.forward ? weighted(expf(log_p), log_p - log_q) : weighted(expf(log_q), log_q - log_p);
  });
  // Kernels cannot throw: a target outside the vocabulary makes the loss NaN, and the step is skipped.
  b.at_target = target < a.vocab ? capped(to_float(z[target]), a.softcap) - b.q.base : __int_as_float(0x7fffffff);
  return b;
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, 2) distilled_cross_entropy(Rows<T> a) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, smem, [32]);
  const int row = static_cast<int>(blockIdx.x), step = static_cast<int>(blockDim.x);
  T* z = a.logits + static_cast<size_t>(row) * static_cast<size_t>(a.columns);
  const T* v = a.teacher + static_cast<size_t>(row) * static_cast<size_t>(a.teacher_columns);
  if (a.targets[row] < 0) {  // ignored row
    if (threadIdx.x == 0) a.losses[row] = a.divergences[row] = 0;
    for (int c = static_cast<int>(threadIdx.x); c < a.columns; c += step) z[c] = from_float<T>(0.f);
    return;
  }
  const Both<T> b = a.all.part.count > 0 ? of_all_parts(a, z, v, row) : of_whole_row(a, z, v, a.targets[row], smem);
  const Softmax<T>&q = b.q, &p = b.p;
  const float loss = logf(b.cold_sum) - b.at_target;
  if (threadIdx.x == 0) {
    a.losses[row] = loss;
    a.divergences[row] = a.temperature * a.temperature * b.between;
  }
  __syncthreads();  // all threads have read the target's logit
  const float scale = *a.scale * a.inv_count, z_weight = 2 * a.z_loss * (q.base + logf(b.cold_sum));
  for (int c = static_cast<int>(threadIdx.x); c < a.columns; c += step) {
    float gradient = 0;
    if (c < a.vocab) {
      const float log_q = q.log_of(c), log_p = p.log_of(c);
      const float of_teacher = a.forward ? expf(log_q) - expf(log_p) : weighted(expf(log_q), log_q - log_p - b.between);
      const float cold = expf(capped(to_float(z[c]), a.softcap) - q.base);
      const float hard = c == b.target ? a.ce_weight * expm1f(-loss) + z_weight * expf(-loss)
                                       : (a.ce_weight + z_weight) * cold / b.cold_sum;
      gradient = scale * slope(to_float(z[c]), a.softcap) * (a.temperature * of_teacher + hard);
    }
    z[c] = from_float<T>(gradient);
  }
}

template <class T>
struct DistillSumRows {
  const T *logits, *teacher;
  float* sums;  // [3, n]
  const float *max, *teacher_max;
  const int32_t* targets;
  int count, columns, teacher_columns;
  bool forward;
  float inverse, softcap, teacher_softcap;
};

template <class T>
__global__ void __launch_bounds__(kRowThreads, 2) distill_sums(DistillSumRows<T> a) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, smem, [32]);
  const int row = static_cast<int>(blockIdx.x), step = static_cast<int>(blockDim.x);
  const T* z = a.logits + static_cast<size_t>(row) * static_cast<size_t>(a.columns);
  const T* v = a.teacher + static_cast<size_t>(row) * static_cast<size_t>(a.teacher_columns);
  const float base = base_of(a.max[row], a.softcap), teacher_base = base_of(a.teacher_max[row], a.teacher_softcap);
  float of_y = 0, of_u = 0, cross = 0;
  const int count = a.targets[row] < 0 ? 0 : a.count;
  for (int c = static_cast<int>(threadIdx.x); c < count; c += step) {
    const float y = (capped(to_float(z[c]), a.softcap) - base) * a.inverse;
    const float u = (capped(to_float(v[c]), a.teacher_softcap) - teacher_base) * a.inverse;
    of_y += expf(y), of_u += expf(u);
    cross += a.forward ? weighted(expf(u), u - y) : weighted(expf(y), y - u);
  }
  of_y = block_sum(of_y, smem), of_u = block_sum(of_u, smem), cross = block_sum(cross, smem);
  if (threadIdx.x != 0) return;
  a.sums[row] = of_y;
  a.sums[gridDim.x + row] = of_u;
  a.sums[2 * gridDim.x + row] = cross;
}

}  // namespace

void run(const DistillSums& op, void*, cudaStream_t stream) {
  if (op.logits.rows() == 0) return;
  const int columns = checked_columns(op.kName, op.logits);
  by_type(op.logits.dtype, [&]<class T>() {
    const DistillSumRows<T> a{.logits = data<T>(op.logits),
                              .teacher = data<T>(op.teacher),
                              .sums = data<float>(op.sums),
                              .max = data<float>(op.max),
                              .teacher_max = data<float>(op.teacher_max),
                              .targets = data<int32_t>(op.targets),
                              .count = static_cast<int>(op.part.count),
                              .columns = columns,
                              .teacher_columns = checked_columns(op.kName, op.teacher),
                              .forward = op.kind == DistillLoss::kl,
                              .inverse = 1 / op.temperature,
                              .softcap = op.softcap,
                              .teacher_softcap = op.teacher_softcap};
    CUDA_CHECK(launch(distill_sums<T>, block_per_row(op.logits.rows(), columns, stream), a));
  });
}

void run(const DistilledCrossEntropy& op, void*, cudaStream_t stream) {
  const int64_t rows = op.logits.rows();
  if (rows == 0) return;
  const int columns = checked_columns(op.kName, op.logits);
  SumsOfParts all{};
  if (op.part) {
    const float *sums = data<float>(op.sums), *distill_sums = data<float>(op.distill_sums);
    all = {.max = data<float>(op.max),
           .cold_sums = sums,
           .at_target = sums + rows,
           .teacher_max = data<float>(op.teacher_max),
           .y_sums = distill_sums,
           .u_sums = distill_sums + rows,
           .cross = distill_sums + 2 * rows,
           .part = part_of(op.part)};
  }
  by_type(op.logits.dtype, [&]<class T>() {
    const Rows<T> a{.logits = data<T>(op.logits),
                    .teacher = data<T>(op.teacher),
                    .losses = data<float>(op.losses),
                    .divergences = data<float>(op.divergences),
                    .targets = data<int32_t>(op.targets),
                    .scale = data<float>(op.scale),
                    .inv_count = op.inv_count,
                    .vocab = static_cast<int>(op.vocab),
                    .columns = columns,
                    .teacher_columns = checked_columns(op.kName, op.teacher),
                    .all = all,
                    .forward = op.kind == DistillLoss::kl,
                    .temperature = op.temperature,
                    .ce_weight = op.ce_weight,
                    .z_loss = op.z_loss,
                    .softcap = op.softcap,
                    .teacher_softcap = op.teacher_softcap};
    CUDA_CHECK(launch(distilled_cross_entropy<T>, block_per_row(rows, columns, stream), a));
  });
}
}  // namespace athanor::cuda
