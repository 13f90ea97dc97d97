// Dropout and stochastic depth on a GPU: the op of ops/dropout.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/dropout.h"
namespace athanor::cuda {

void run(const DropPath& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
