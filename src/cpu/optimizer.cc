// StepControl, and splitting and joining of master weights.
#include <algorithm>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/update.h"
#include "ops/step_control.h"

namespace athanor {

void CpuOps::run(const StepControl& op, void*) {
  const float* scores = op.scores ? flat<float>(op.scores) : nullptr;
  close_step(*static_cast<StepState*>(op.state.data), op, static_cast<SpikeWindow*>(op.window.data),
             scores ? *std::max_element(scores, scores + op.scores.numel()) : 0);
}

void CpuOps::run(const SplitMaster& op, void*) {
  float* master = flat<float>(op.master);
  bf16* param = flat<bf16>(op.param);
  int16_t* rest = op.rest ? flat<int16_t>(op.rest) : nullptr;
  pool_.parallel_ranges(op.master.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
    update::settle(master + begin, param + begin, rest ? rest + begin : nullptr, end - begin);
  });
}

void CpuOps::run(const JoinMaster& op, void*) {
  float* master = flat<float>(op.master);
  const bf16* param = flat<bf16>(op.param);
  const int16_t* rest = flat<int16_t>(op.rest);
  pool_.parallel_ranges(op.master.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
    update::join(master + begin, param + begin, rest + begin, end - begin);
  });
}

}  // namespace athanor
