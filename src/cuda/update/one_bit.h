// The ops of ops/one_bit.h on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/one_bit.h"
namespace athanor::cuda {

void run(const OneBitMomentum& op, void* scratch, cudaStream_t stream);
void run(const OneBitMean& op, void* scratch, cudaStream_t stream);
void run(const OneBitDirection& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
