// The ops of ops/lamb.h on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/lamb.h"
namespace athanor::cuda {

void run(const AdamDirection& op, void* scratch, cudaStream_t stream);
void run(const ScaleByTrustRatio& op, void* scratch, cudaStream_t stream);
void run(const AverageTrustRatio& op, void* scratch, cudaStream_t stream);
void run(const FrozenTrustRatio& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
