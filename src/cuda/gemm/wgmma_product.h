// Products by the program's own kernels, for compute capability 9.0, where they fuse what cuBLASLt cannot: SwiGLU, its
// gradient, and RoPE.
#pragma once
#include <cuda_runtime_api.h>

#include <string>

#include "ops/gemm_problem.h"
namespace athanor::cuda {

// Whether the kernel computes the problem on the current GPU. Depends on the GPU, the build, and the problem alone.
bool wgmma_takes(const GemmProblem& p, int capability);
// Only for what it takes. Launches one kernel, without scratch memory; d and aux have the bits of in_parts() of a
// product with its order of sums.
void run_by_wgmma(const Gemm& op, cudaStream_t stream);
std::string wgmma_method();  // in words
}  // namespace athanor::cuda
