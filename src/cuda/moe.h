// Mixtures of experts on a GPU: the ops of ops/moe.h.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/moe.h"
namespace athanor::cuda {

// moe.cu
void run(const RouteFwd& op, void* scratch, cudaStream_t stream);
void run(const DropChoices& op, void* scratch, cudaStream_t stream);
void run(const CountExperts& op, void* scratch, cudaStream_t stream);
void run(const ExpertLoads& op, void* scratch, cudaStream_t stream);
void run(const RouteBwd& op, void* scratch, cudaStream_t stream);
void run(const StepRouterBias& op, void* scratch, cudaStream_t stream);
void run(const SortByExpert& op, void* scratch, cudaStream_t stream);
void run(const SendSlots& op, void* scratch, cudaStream_t stream);
void run(const ReceiveSlots& op, void* scratch, cudaStream_t stream);
void run(const SumRows& op, void* scratch, cudaStream_t stream);
void run(const WeightedSwigluFwd& op, void* scratch, cudaStream_t stream);
void run(const WeightedSwigluBwd& op, void* scratch, cudaStream_t stream);
// grouped_gemm.cu
void run(const GroupedGemm& op, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
