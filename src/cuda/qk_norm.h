// RMSNorm of each head of q and k on a GPU: the ops QkNormFwd, QkNormBwd and QkNormSums of ops/norm.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/norm.h"
namespace athanor::cuda {

void run(const QkNormFwd& op, void* scratch, cudaStream_t stream);
void run(const QkNormBwd& op, void* scratch, cudaStream_t stream);
void run(const QkNormSums& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
