// Rotary position embedding on a GPU: the op Rope of ops/attention.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/attention.h"
namespace athanor::cuda {

void run(const Rope& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
