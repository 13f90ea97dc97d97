// Cross-entropy and a teacher's loss, a block per row: DistilledCrossEntropy of ops/loss.h. A pass over both rows finds
// the maxima, one the sums, one the divergence, and the last writes the gradient in place of the logits. Memory bound;
// after the first pass rows come from L2. Deterministic: the order of sums depends on the number of columns alone. Not
// run on a GPU yet.
#include <algorithm>
#include <limits>

#include "cuda/host_tools.h"
#include "cuda/loss.h"
#include "cuda/pack.h"
#include "cuda/ptx/ptx.h"
#include "cuda/reduce.h"

namespace athanor::cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr float kInf = std::numeric_limits<float>::infinity();

template <class T>
struct Rows {
  T* logits;
  const T* teacher;
  float *losses, *divergences;
  const int32_t* targets;
  const float* scale;
  float inv_count;
  int vocab, columns;
  bool forward;
  float temperature, ce_weight, z_loss, softcap, teacher_softcap;
};

__device__ __forceinline__ float capped(float x, float cap) { return cap > 0 ? cap * tanhf(x / cap) : x; }
// 1 - tanh^2(u) = 4 e / (1 + e)^2, e = exp(-2 |u|), keeps its precision where tanh is close to 1.
__device__ __forceinline__ float slope(float x, float cap) {
  if (cap <= 0) return 1;
  const float e = expf(-2 * fabsf(x / cap));
  return 4 * e / ((1 + e) * (1 + e));
}

// The softmax of a row of logits at a temperature, by the logarithm of its sum.
template <class T>
struct Softmax {
  const T* x;
  float base, cap, inverse, log_sum;
  __device__ __forceinline__ float log_of(int c) const {
    return (capped(to_float(x[c]), cap) - base) * inverse - log_sum;
  }
};

template <class F>
__device__ __forceinline__ float sum_of_columns(int n, float* room, F term) {
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x); c < n; c += static_cast<int>(blockDim.x)) sum += term(c);
  return block_sum(sum, room);
}

template <class T>
__device__ __forceinline__ Softmax<T> softmax_of(const T* x, int n, float cap, float inverse, float* room) {
  float most = -kInf;
  for (int c = static_cast<int>(threadIdx.x); c < n; c += static_cast<int>(blockDim.x)) most = fmaxf(most, to_float(x[c]));
  most = capped(block_reduce(most, room, Max{}), cap);
  Softmax<T> s{x, most == -kInf ? 0.f : most, cap, inverse, 0};  // -inf - -inf would be NaN
  s.log_sum = logf(sum_of_columns(n, room, [&](int c) { return expf((capped(to_float(x[c]), cap) - s.base) * inverse); }));
  return s;
}

// p times the difference of logarithms, also where p is 0 and the difference is not finite.
__device__ __forceinline__ float weighted(float p, float difference) { return p > 0 ? p * difference : 0; }

template <class T>
__global__ void __launch_bounds__(kMaxThreads, 2) distilled_cross_entropy(Rows<T> a) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, room, [32]);
  const int row = static_cast<int>(blockIdx.x), step = static_cast<int>(blockDim.x);
  const auto offset = static_cast<size_t>(row) * static_cast<size_t>(a.columns);
  T* z = a.logits + offset;
  const T* v = a.teacher + offset;
  const int target = a.targets[row];
  if (target < 0) {  // ignored
    if (threadIdx.x == 0) a.losses[row] = a.divergences[row] = 0;
    for (int c = static_cast<int>(threadIdx.x); c < a.columns; c += step) z[c] = from_float<T>(0.f);
    return;
  }
  const Softmax<T> q = softmax_of<T>(z, a.vocab, a.softcap, 1 / a.temperature, room);
  const Softmax<T> p = softmax_of<T>(v, a.vocab, a.teacher_softcap, 1 / a.temperature, room);
  const auto cold = [&](int c) { return expf(capped(to_float(z[c]), a.softcap) - q.base); };
  const float cold_sum = sum_of_columns(a.vocab, room, cold);
  const float between = sum_of_columns(a.vocab, room, [&](int c) {
    const float log_q = q.log_of(c), log_p = p.log_of(c);
    return a.forward ? weighted(expf(log_p), log_p - log_q) : weighted(expf(log_q), log_q - log_p);
  });
  // Kernels cannot throw: a target outside the vocabulary makes the loss NaN, and the step is skipped.
  const float logit = target < a.vocab ? capped(to_float(z[target]), a.softcap) : __int_as_float(0x7fffffff);
  const float loss = logf(cold_sum) - (logit - q.base);
  if (threadIdx.x == 0) {
    a.losses[row] = loss;
    a.divergences[row] = a.temperature * a.temperature * between;
  }
  __syncthreads();  // all have read the target's logit
  const float scale = *a.scale * a.inv_count, z_weight = 2 * a.z_loss * (q.base + logf(cold_sum));
  for (int c = static_cast<int>(threadIdx.x); c < a.columns; c += step) {
    float gradient = 0;
    if (c < a.vocab) {
      const float log_q = q.log_of(c), log_p = p.log_of(c);
      const float of_teacher =
          a.forward ? expf(log_q) - expf(log_p) : weighted(expf(log_q), log_q - log_p - between);
      const float hard = c == target ? a.ce_weight * expm1f(-loss) + z_weight * expf(-loss)
                                     : (a.ce_weight + z_weight) * cold(c) / cold_sum;
      gradient = scale * slope(to_float(z[c]), a.softcap) * (a.temperature * of_teacher + hard);
    }
    z[c] = from_float<T>(gradient);
  }
}

}  // namespace

void run(const DistilledCrossEntropy& op, void*, cudaStream_t stream) {
  const int64_t rows = op.logits.rows();
  if (rows == 0) return;
  const int columns = checked_columns(op.kName, op.logits);
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
                    .forward = op.kind == DistillLoss::kl,
                    .temperature = op.temperature,
                    .ce_weight = op.ce_weight,
                    .z_loss = op.z_loss,
                    .softcap = op.softcap,
                    .teacher_softcap = op.teacher_softcap};
    const int threads = std::min(kMaxThreads, round_up(columns, 32));
    const LaunchConfig config{dim3(grid_size(rows)), dim3(static_cast<unsigned>(threads)), 0, stream};
    CUDA_CHECK(launch(distilled_cross_entropy<T>, config, a));
  });
}
}  // namespace athanor::cuda
