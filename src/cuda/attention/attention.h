// Attention on a GPU: the ops of ops/attention.h but Rope, and those of ops/attention_sinks.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/attention.h"
#include "ops/attention_sinks.h"
namespace athanor::cuda {

void run(const AttentionFwd& op, void* scratch, cudaStream_t stream);
void run(const AttentionBwd& op, void* scratch, cudaStream_t stream);
// As run(), never by the wgmma kernels: what the faster kernels, cuDNN's too, are compared with.
void run_without_wgmma(const AttentionFwd& op, void* scratch, cudaStream_t stream);
void run_without_wgmma(const AttentionBwd& op, void* scratch, cudaStream_t stream);
// On the current GPU. They alone turn gradients back; behind others that is a launch more.
bool warpgroups_take(const AttentionBwd& op);
void run(const MergeAttention& op, void* scratch, cudaStream_t stream);
void run(const AttentionSinks& op, void* scratch, cudaStream_t stream);
void run(const AttentionSinksBwd& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
