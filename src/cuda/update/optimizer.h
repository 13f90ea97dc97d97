// The end of a step on a GPU: the ops of ops/optimizer.h and ops/update.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/qk_clip.h"
namespace athanor::cuda {

void run(const StepControl& op, void* scratch, cudaStream_t stream);
void run(const AdamW& op, void* scratch, cudaStream_t stream);
void run(const AdamW8bit& op, void* scratch, cudaStream_t stream);
void run(const ScheduleFreeAdamW& op, void* scratch, cudaStream_t stream);
void run(const Sgd& op, void* scratch, cudaStream_t stream);
void run(const Lion& op, void* scratch, cudaStream_t stream);
void run(const Ema& op, void* scratch, cudaStream_t stream);
void run(const QkClip& op, void* scratch, cudaStream_t stream);
void run(const SplitMaster& op, void* scratch, cudaStream_t stream);
void run(const JoinMaster& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
