// Lion: one pass over weights, average and gradient.
#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

using simd::Vec;
using simd::Word;

// lr with the sign of c; 0 if c is 0; NaN stays NaN.
template <int L>
ATHANOR_INLINE Vec<L> signed_rate(const Vec<L>& c, float lr) {
  return simd::each_part<L>([&](int i) ATHANOR_INLINE_LAMBDA {
    const simd::Float<L> x = c.part[i], zero = {};
    const Word<L> rate = std::bit_cast<uint32_t>(lr) | ((Word<L>)x & 0x80000000u);
    return x == zero ? zero : x == x ? (simd::Float<L>)rate : x;  // NOLINT(misc-redundant-expression): false for NaN
  });
}

struct Signs {
  template <int L>
  static ATHANOR_INLINE void step(Vec<L>& w, const Vec<L>& grad, Vec<L>& m, Vec<L>&, const LionScalars& a) {
    const Vec<L> g = grad * a.grad_scale;
    w = update::decayed<L>(w, signed_rate<L>(a.beta1 * m + a.one_minus_beta1 * g, a.lr), a);
    m = a.beta2 * m + a.one_minus_beta2 * g;
  }
};

}  // namespace

void CpuOps::run(const Lion& op, void*) {
  const StepState& state = update::state_of(op.state);
  update::run<Signs>(pool_, op, state, lion_scalars(op, state));
}

}  // namespace athanor
