// The ops of ops/fp4_sum.h on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/fp4_sum.h"
namespace athanor::cuda {

void run(const PackFp4& op, void* scratch, cudaStream_t stream);
void run(const SumFp4& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
