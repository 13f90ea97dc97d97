// DoRA's scaled columns on a GPU: the ops of ops/dora.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/dora.h"
namespace athanor::cuda {

void run(const ScaleByMagnitude& op, void* scratch, cudaStream_t stream);
void run(const ScaleByMagnitudeBwd& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
