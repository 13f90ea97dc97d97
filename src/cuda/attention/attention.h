// Attention on a GPU: the ops of ops/attention.h except Rope, and those of ops/attention_sinks.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/attention.h"
#include "ops/attention_sinks.h"
namespace athanor::cuda {

void run(const AttentionFwd& op, void* scratch, cudaStream_t stream);
void run(const AttentionBwd& op, void* scratch, cudaStream_t stream);
// Same as run(), but never uses the wgmma kernels: the reference for faster kernels, including cuDNN's.
void run_without_wgmma(const AttentionFwd& op, void* scratch, cudaStream_t stream);
void run_without_wgmma(const AttentionBwd& op, void* scratch, cudaStream_t stream);
// Whether the wgmma kernels compute the op on the current GPU. Only they fuse RoPE's backward (AttentionBwd::cos_sin);
// other kernels need a separate launch for it.
bool warpgroups_take(const AttentionBwd& op);
void run(const MergeAttention& op, void* scratch, cudaStream_t stream);
void run(const AttentionSinks& op, void* scratch, cudaStream_t stream);
void run(const AttentionSinksBwd& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
