// GEMMs by the program's own kernels, for compute capability 9.0, with epilogues that cuBLASLt cannot fuse: SwiGLU, its
// gradient, and RoPE.
#pragma once
#include <cuda_runtime_api.h>

#include <string>

#include "ops/gemm_problem.h"
namespace athanor::cuda {

// Whether the kernel computes the problem on the current GPU. Depends on the GPU, the build, and the problem alone.
bool wgmma_takes(const GemmProblem& p, int capability);
// Requires wgmma_takes(). Launches one kernel, without scratch memory; d and aux have the same bits as in_parts() with
// a GEMM that adds in the same order.
void run_by_wgmma(const Gemm& op, cudaStream_t stream);
std::string wgmma_method();  // description for the log
}  // namespace athanor::cuda
