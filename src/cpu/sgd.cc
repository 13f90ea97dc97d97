// Stochastic gradient descent: one pass over weights, momentum and gradient.
#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

using simd::Vec;

// In the order of operations of torch.optim.SGD; multiplying by factors 1 and 0 does not change the results.
struct Descent {
  template <int L>
  static ATHANOR_INLINE void step(Vec<L>& w, const Vec<L>& grad, Vec<L>& m, Vec<L>&, const SgdScalars& a) {
    const Vec<L> g = grad * a.grad_scale + a.l2 * w;
    m = a.momentum * m + g;
    w = update::decayed<L>(w, a.lr * (a.from_gradient * g + a.from_average * m), a);
  }
};

}  // namespace

void CpuOps::run(const Sgd& op, void*) {
  const StepState& state = update::state_of(op.state);
  update::run<Descent>(pool_, op, state, sgd_scalars(op, state));
}

}  // namespace athanor
