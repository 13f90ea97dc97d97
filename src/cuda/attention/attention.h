// Attention by the slower of our own kernels, and which kernels compute an op.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/attention.h"
namespace athanor::cuda {

// Same as run(), but never uses the wgmma kernels: the reference for faster kernels, including cuDNN's.
void run_without_wgmma(const AttentionFwd& op, void* scratch, cudaStream_t stream);
void run_without_wgmma(const AttentionBwd& op, void* scratch, cudaStream_t stream);
// Whether the wgmma kernels compute the op on the current GPU. Only they fuse RoPE's backward (AttentionBwd::cos_sin);
// other kernels need a separate launch for it.
bool warpgroups_take(const AttentionBwd& op);
}  // namespace athanor::cuda
