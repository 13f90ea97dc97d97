// NF4 weights on a GPU: the op of ops/nf4.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/nf4.h"
namespace athanor::cuda {

void run(const DequantizeNf4& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
