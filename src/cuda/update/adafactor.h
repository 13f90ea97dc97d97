// The ops of ops/adafactor.h on a GPU.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/adafactor.h"
namespace athanor::cuda {

void run(const FactoredMoments& op, void* scratch, cudaStream_t stream);
void run(const ClipFactors& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
