// Schedule-free AdamW: one pass over weights, m = x - y, second moments and gradient.
#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

using simd::Vec;

struct ScheduleFree {
  template <int L>
  static ATHANOR_INLINE void step(Vec<L>& w, const Vec<L>& grad, Vec<L>& m, Vec<L>& v, const ScheduleFreeScalars& a) {
    const Vec<L> g = grad * a.grad_scale;
    v = a.beta2 * v + a.one_minus_beta2 * g * g;
    const Vec<L> step = g / (simd::sqrt(v) / a.root_bias2 + a.eps);
    const Vec<L> u = step + update::decay_of<L>(w, step, a) * w;
    w = w - a.from_m * m - a.step * u;
    m = a.keep * (m + a.m_step * u);
  }
};

}  // namespace

void CpuOps::run(const ScheduleFreeAdamW& op, void*) {
  const StepState& state = update::state_of(op.state);
  update::run<ScheduleFree>(pool_, op, state, schedule_free_scalars(op, state));
}

}  // namespace athanor
