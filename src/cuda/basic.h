// Element-wise ops, sums to a scalar and initial values on a GPU: the ops of ops/basic.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/basic.h"
namespace athanor::cuda {

void run(const Fill& op, void* scratch, cudaStream_t stream);
void run(const Cast& op, void* scratch, cudaStream_t stream);
void run(const MaskedFill& op, void* scratch, cudaStream_t stream);
void run(const Add& op, void* scratch, cudaStream_t stream);
void run(const ReduceSum& op, void* scratch, cudaStream_t stream);
void run(const SquaredNorm& op, void* scratch, cudaStream_t stream);
void run(const RandomNormal& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
