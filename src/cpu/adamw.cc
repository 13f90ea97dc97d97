// Adam and AdamW: one pass over weights, moments and gradient.
#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

using simd::Vec;

// In the order of torch.optim.Adam where the decay is coupled, else of torch.optim.AdamW.
template <bool kCoupled>
struct Moments {
  template <int L>
  static ATHANOR_INLINE void step(Vec<L>& w, const Vec<L>& grad, Vec<L>& m, Vec<L>& v, const AdamScalars& a) {
    Vec<L> g = grad * a.grad_scale;
    if constexpr (kCoupled) g = g + a.l2 * w;
    m = a.beta1 * m + a.one_minus_beta1 * g;
    v = a.beta2 * v + a.one_minus_beta2 * g * g;
    const Vec<L> u = a.step_size * m / (simd::sqrt(v) / a.root_bias2 + a.eps);
    if constexpr (kCoupled)
      w = w - u;
    else
      w = update::decayed<L>(w, u, a);
  }
};

}  // namespace

void CpuOps::run(const AdamW& op, void*) {
  const StepState& state = update::state_of(op.state);
  const AdamScalars scalars = adam_scalars(op, state);
  if (op.coupled)
    update::run<Moments<true>>(pool_, op, state, scalars);
  else
    update::run<Moments<false>>(pool_, op, state, scalars);
}

}  // namespace athanor
