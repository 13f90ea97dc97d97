// Residual add with RMSNorm or LayerNorm on a GPU: the ops AddNormFwd, NormApply and AddNormBwd of ops/norm.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/norm.h"
namespace athanor::cuda {

void run(const AddNormFwd& op, void* scratch, cudaStream_t stream);
void run(const NormApply& op, void* scratch, cudaStream_t stream);
void run(const AddNormBwd& op, void* scratch, cudaStream_t stream);
size_t scratch(const AddNormBwd& op);
}  // namespace athanor::cuda
