// Softmax cross-entropy on a GPU: the op of ops/loss.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/loss.h"
namespace athanor::cuda {

void run(const CrossEntropy& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
