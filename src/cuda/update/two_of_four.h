// 2:4 sparsity of weights on a GPU: the ops of ops/two_of_four.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/two_of_four.h"
namespace athanor::cuda {

void run(const KeepTwoOfFour& op, void* scratch, cudaStream_t stream);
void run(const DecayPruned& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
