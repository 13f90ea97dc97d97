// The ops of ops/muon.h on a GPU; Momentum is with the update rules of optimizer.cu.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/muon.h"
namespace athanor::cuda {

void run(const Momentum& op, void* scratch, cudaStream_t stream);
void run(const NormalizeMatrix& op, void* scratch, cudaStream_t stream);
void run(const Combine& op, void* scratch, cudaStream_t stream);
void run(const NormalizeNeurons& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
