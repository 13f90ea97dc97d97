// Activations, scaled and gated sums on a GPU: the ops of ops/activation.h and gated_sum.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/activation.h"
#include "ops/gated_sum.h"
namespace athanor::cuda {

void run(const ActivationFwd& op, void* scratch, cudaStream_t stream);
void run(const ActivationBwd& op, void* scratch, cudaStream_t stream);
void run(const ScaledSum& op, void* scratch, cudaStream_t stream);
void run(const ScaledSumBwd& op, void* scratch, cudaStream_t stream);
void run(const GatedSum& op, void* scratch, cudaStream_t stream);
void run(const GatedSumBwd& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
