// The ops of ops/adam_mini.h on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/adam_mini.h"
namespace athanor::cuda {

void run(const OutputSquares& op, void* scratch, cudaStream_t stream);
void run(const BlockMoments& op, void* scratch, cudaStream_t stream);
void run(const ScaleOutputs& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
