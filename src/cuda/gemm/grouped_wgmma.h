// Grouped GEMMs of a mixture of experts by the program's own kernels for compute capability 9.0: bf16 and fp16
// operands.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/moe.h"
namespace athanor::cuda {

// Whether the kernels compute the op on the current GPU. Depends on the GPU, the build, shapes and alignment alone.
bool grouped_wgmma_takes(const GroupedGemm& op);
// Requires grouped_wgmma_takes(). Launches one kernel, without scratch memory.
void run_grouped_by_wgmma(const GroupedGemm& op, cudaStream_t stream);
}  // namespace athanor::cuda
