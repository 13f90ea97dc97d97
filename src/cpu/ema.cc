// Moving average of weights: one pass over masters and averages.
#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

using simd::Vec;

struct Averaging {
  template <int L, class Master>
  static ATHANOR_INLINE void run(float* average, const Master& master, int64_t n, float rate) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> a = at.load(average), w = master.template load<L>(at);
      at.store(average, a + rate * (w - a));
    });
  }
};

}  // namespace

void CpuOps::run(const Ema& op, void*) {
  const StepState& state = update::state_of(op.state);
  if (state.skip) return;
  const float rate = ema_rate(op.decay, op.average, state);
  for (const Ema::Part& p : op.parts)
    update::by_master({.master = p.master, .param = p.param}, [&](const auto& master) {
      float* average = flat<float>(p.average);
      pool_.parallel_ranges(p.master.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
        simd::dispatch<Averaging>(average + begin, master.from(begin), end - begin, rate);
      });
    });
}

}  // namespace athanor
