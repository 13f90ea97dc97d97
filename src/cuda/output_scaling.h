// The ops of ops/output_scaling.h on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/output_scaling.h"
namespace athanor::cuda {

void run(const OutputSquares& op, void* scratch, cudaStream_t stream);
void run(const ScaleOutputs& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
