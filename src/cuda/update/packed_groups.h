// The ops of ops/packed_groups.h on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/packed_groups.h"
namespace athanor::cuda {

void run(const PackGroups& op, void* scratch, cudaStream_t stream);
void run(const SumGroups& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
