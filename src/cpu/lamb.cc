// LAMB: one pass over weights, moments and gradient, and one over the gradient.
#include "ops/lamb.h"
#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

using simd::Vec;

struct Direction {
  template <int L>
  static ATHANOR_INLINE void run(const float* w, float* m, float* v, float* grad, int64_t n, const LambScalars& a) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> weight = w ? at.load(w) : Vec<L>{}, g = at.load(grad) * a.grad_scale;
      const Vec<L> first = a.beta1 * at.load(m) + a.one_minus_beta1 * g;
      const Vec<L> second = a.beta2 * at.load(v) + a.one_minus_beta2 * g * g;
      const Vec<L> u = a.inverse_bias1 * first / (simd::sqrt(second) / a.root_bias2 + a.eps);
      at.store(grad, u + update::decay_of<L>(weight, u, a) * weight);
      at.store(m, first);
      at.store(v, second);
    });
  }
};

struct ScaleBy {
  template <int L>
  static ATHANOR_INLINE void run(float* x, int64_t n, float by) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(x, at.load(x) * by); });
  }
};

}  // namespace

void CpuOps::run(const AdamDirection& op, void*) {
  const StepState& state = update::state_of(op.state);
  const LambScalars scalars = lamb_scalars(op, state);
  for (const AdamDirection::Part& p : op.parts) {
    float *grad = flat<float>(p.grad), *w = p.w ? flat<float>(p.w) : nullptr;
    const uint64_t first = (uint64_t(state.updates) << 40) + p.first;
    pool_.parallel_ranges(p.grad.numel(), kChunkElements, [&](int64_t from, int64_t to) {
      if (state.skip) {
        std::memset(grad + from, 0, size_t(to - from) * sizeof(float));
        return;
      }
      update::for_pieces(from, to, update::kPiece, p.decayed, scalars, [&](int64_t begin, int64_t n, const auto& a) {
        update::Workspace m_workspace, v_workspace;
        float *m = update::open_state(p.m, begin, n, m_workspace), *v = update::open_state(p.v, begin, n, v_workspace);
        simd::dispatch<Direction>(w ? w + begin : nullptr, m, v, grad + begin, n, a);
        const Noise noise{op.seed, p.moment_stream, first + uint64_t(begin)};
        update::close_state(p.m, begin, n, m, noise, update::Bits::upper);
        update::close_state(p.v, begin, n, v, noise, update::Bits::lower);
      });
    });
  }
}

void CpuOps::run(const ScaleByTrustRatio& op, void*) {
  for (const ScaleByTrustRatio::Part& p : op.parts) {
    const float ratio = trust_ratio(flat<double>(p.sums), p.sums.cols());
    float* grad = flat<float>(p.grad);
    pool_.parallel_ranges(p.grad.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      simd::dispatch<ScaleBy>(grad + begin, end - begin, ratio);
    });
  }
}

void CpuOps::run(const AverageTrustRatio& op, void*) {
  if (update::state_of(op.state).skip) return;
  for (const AverageTrustRatio::Part& p : op.parts) {
    float& average = flat<float>(p.trust)[0];
    average = next_average(average, trust_ratio(flat<double>(p.sums), p.sums.cols()));
  }
}

void CpuOps::run(const FrozenTrustRatio& op, void*) {
  const bool skip = update::state_of(op.state).skip;
  for (const FrozenTrustRatio::Part& p : op.parts) {
    double* sums = flat<double>(p.sums);
    sums[0] = sums[1] = 1;
    if (skip) continue;
    float* trust = flat<float>(p.trust);
    trust[1] = next_factor(trust[1], *flat<float>(p.max));
    const double ratio = double(trust[0]) * double(trust[1]);
    sums[0] = ratio * ratio;
  }
}

}  // namespace athanor
