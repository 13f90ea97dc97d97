// The ops of ops/quantize.h on a GPU but the products (gemm/scaled.cc), and what products need of codes.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/quantize.h"
namespace athanor::cuda {

void run(const Quantize& op, void* scratch, cudaStream_t stream);
void run(const DelayedScales& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
