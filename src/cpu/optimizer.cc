// The end of a step and fused AdamW: one pass over weights, moments and gradient, at the speed of memory.
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/simd.h"

#include <cmath>
#include <cstring>

#include "base/rng.h"

namespace athanor {
namespace {

// Computed in double and rounded once to f32, as torch.optim.AdamW does.
struct AdamScalars {
  float grad_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, root_bias2, eps;
};

AdamScalars scalars_of(const AdamW& op, const StepState& s) {
  return {.grad_scale = s.grad_scale,
          .decay = float(1 - double(s.lr) * op.weight_decay),
          .beta1 = float(op.beta1),
          .one_minus_beta1 = float(1 - op.beta1),
          .beta2 = float(op.beta2),
          .one_minus_beta2 = float(1 - op.beta2),
          .step_size = float(double(s.lr) / double(s.bias1)),
          .root_bias2 = float(std::sqrt(double(s.bias2))),
          .eps = float(op.eps)};
}

// One element, in f32, in the order of torch.optim.AdamW. Returns the new weight.
ATHANOR_INLINE float adamw(float w, float& m, float& v, float grad, const AdamScalars& a) {
  const float g = grad * a.grad_scale;
  m = a.beta1 * m + a.one_minus_beta1 * g;
  v = a.beta2 * v + a.one_minus_beta2 * g * g;
  return w * a.decay - a.step_size * m / (std::sqrt(v) / a.root_bias2 + a.eps);
}

struct Rows {
  float *m, *v, *grad;
  int64_t n;
};

// master f32; param of type P or null.
template <class P>
ATHANOR_CLONES void adamw_f32(float* master, P* param, const Rows& r, const AdamScalars& a) {
  for (int64_t i = 0; i < r.n; ++i) {
    master[i] = adamw(master[i], r.m[i], r.v[i], r.grad[i], a);
    if (param) param[i] = from_float<P>(master[i]);
    r.grad[i] = 0;
  }
}

template <class P>
ATHANOR_CLONES void adamw_bf16(bf16* master, P* param, const Rows& r, const AdamScalars& a, uint64_t seed,
                               uint64_t stream, uint64_t first) {
  for (int64_t i = 0; i < r.n; ++i) {
    const float w = adamw(to_float(master[i]), r.m[i], r.v[i], r.grad[i], a);
    master[i] = round_stochastic(w, random_bits(seed, stream, first + uint64_t(i)));
    if (param) param[i] = from_float<P>(to_float(master[i]));
    r.grad[i] = 0;
  }
}

// The compute copy is an output like any other: it is written on every path.
template <class P>
ATHANOR_CLONES void copy_master(P* param, const Tensor& master, int64_t begin, int64_t end) {
  const float* f32 = static_cast<const float*>(master.data);
  const bf16* b16 = static_cast<const bf16*>(master.data);
  if (master.dtype == DType::f32)
    for (int64_t i = begin; i < end; ++i) param[i] = from_float<P>(f32[i]);
  else
    for (int64_t i = begin; i < end; ++i) param[i] = from_float<P>(to_float(b16[i]));
}

void skip_step(ThreadPool& pool, const AdamW& op) {
  float* grad = flat<float>(op.grad);
  pool.parallel_ranges(op.grad.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
    std::memset(grad + begin, 0, size_t(end - begin) * sizeof(float));
    if (op.param) by_float(op.param.dtype, [&]<class P>() { copy_master(op.param.as<P>(), op.master, begin, end); });
  });
}

}  // namespace

void CpuOps::run(const StepControl& op, void*) {
  close_step(*reinterpret_cast<StepState*>(op.state.as<uint8_t>()), op);
}

void CpuOps::run(const AdamW& op, void*) {
  const auto& state = *reinterpret_cast<const StepState*>(op.state.as<uint8_t>());
  const int64_t n = op.master.numel();
  float *m = flat<float>(op.m), *v = flat<float>(op.v), *grad = flat<float>(op.grad);
  if (state.skip) return skip_step(pool_, op);
  const AdamScalars a = scalars_of(op, state);
  const uint64_t first = (uint64_t(state.updates) << 40) + op.first;
  by_float(op.param ? op.param.dtype : op.master.dtype, [&]<class P>() {
    P* param = op.param ? flat<P>(op.param) : nullptr;
    pool_.parallel_ranges(n, kChunkElements, [&](int64_t begin, int64_t end) {
      const Rows rows{m + begin, v + begin, grad + begin, end - begin};
      P* out = param ? param + begin : nullptr;
      if (op.master.dtype == DType::f32)
        adamw_f32(op.master.as<float>() + begin, out, rows, a);
      else
        adamw_bf16(op.master.as<bf16>() + begin, out, rows, a, op.seed, op.stream, first + uint64_t(begin));
    });
  });
}

}  // namespace athanor
