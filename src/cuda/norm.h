// RMSNorm and LayerNorm on a GPU: the ops NormFwd, NormApply and NormBwd of ops/norm.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/norm.h"
namespace athanor::cuda {

// Every kernel computes y by this function, so that y has the same bits everywhere.
__device__ __forceinline__ float normalised(float h, float mean, float rstd, float w, float b) {
  return fmaf((h - mean) * rstd, w, b);
}

void run(const NormFwd& op, void* scratch, cudaStream_t stream);
void run(const NormApply& op, void* scratch, cudaStream_t stream);
void run(const NormBwd& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
