// GELU and SwiGLU on a GPU: the ops of ops/mlp.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/mlp.h"
namespace athanor::cuda {

void run(const GeluFwd& op, void* scratch, cudaStream_t stream);
void run(const GeluBwd& op, void* scratch, cudaStream_t stream);
void run(const SwigluFwd& op, void* scratch, cudaStream_t stream);
void run(const SwigluBwd& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
