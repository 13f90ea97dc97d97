// Moving average of weights: one pass over masters and averages.
#include "cpu/cpu_ops.h"
#include "cpu/update.h"

namespace athanor {
namespace {

using simd::Vec;

struct Averaging {
  template <int L>
  static ATHANOR_INLINE void run(float* average, const float* weights, int64_t n, float rate) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> a = at.load(average), w = at.load(weights);
      at.store(average, a + rate * (w - a));
    });
  }
};

}  // namespace

void CpuOps::run(const Ema& op, void*) {
  const StepState& state = update::state_of(op.state);
  if (state.skip) return;
  const float rate = ema_rate(op.decay, op.average, state);
  for (const Ema::Part& p : op.parts) {
    const UpdatePart weights{.master = p.master, .param = p.param};
    float* average = flat<float>(p.average);
    pool_.parallel_ranges(p.master.numel(), kChunkElements, [&](int64_t from, int64_t to) {
      for (int64_t begin = from; begin < to; begin += update::kPiece) {
        const int64_t n = std::min(update::kPiece, to - begin);
        update::Workspace workspace;
        const float* w = update::open_master(weights, begin, n, workspace);
        simd::dispatch<Averaging>(average + begin, w, n, rate);
      }
    });
  }
}

}  // namespace athanor
