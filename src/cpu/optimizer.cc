// The end of a step, and masters that are split into halves and joined.
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/update.h"
#include "ops/step_control.h"

namespace athanor {
namespace {

using simd::Vec;
using update::HalvedMaster;

struct Split {
  template <int L>
  static ATHANOR_INLINE void run(float* master, bf16* param, int16_t* rest, int64_t n) {
    simd::for_columns<L, float>(n, [&](auto at) ATHANOR_INLINE_LAMBDA {
      const Vec<L> w = update::settled<L>(at.load(master));
      at.store(master, w);
      at.store(param, w);
      if (rest) at.store(rest, w);
    });
  }
};

struct Join {
  template <int L>
  static ATHANOR_INLINE void run(float* master, const HalvedMaster& halves, int64_t n) {
    simd::for_columns<L, float>(n,
                                [&](auto at) ATHANOR_INLINE_LAMBDA { at.store(master, halves.template load<L>(at)); });
  }
};

}  // namespace

void CpuOps::run(const StepControl& op, void*) {
  close_step(*static_cast<StepState*>(op.state.data), op, static_cast<SpikeWindow*>(op.window.data));
}

void CpuOps::run(const SplitMaster& op, void*) {
  float* master = flat<float>(op.master);
  bf16* param = flat<bf16>(op.param);
  int16_t* rest = op.rest ? flat<int16_t>(op.rest) : nullptr;
  pool_.parallel_ranges(op.master.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
    simd::dispatch<Split>(master + begin, param + begin, rest ? rest + begin : nullptr, end - begin);
  });
}

void CpuOps::run(const JoinMaster& op, void*) {
  float* master = flat<float>(op.master);
  const HalvedMaster halves{flat<bf16>(op.param), flat<int16_t>(op.rest)};
  pool_.parallel_ranges(op.master.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
    simd::dispatch<Join>(master + begin, halves.from(begin), end - begin);
  });
}

}  // namespace athanor
