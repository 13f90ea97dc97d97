// The program's own kernels of products, as one candidate beside the library: of codes, or with SwiGLU.
#pragma once
#include "cuda/gemm/gemm.h"
namespace athanor::cuda {

// Whether one of them computes the problem on the current GPU. Depends on the GPU, the build, and the problem alone.
bool own_takes(const GemmProblem& p, int capability);
void run_own(const LibraryProduct& product, cudaStream_t stream);  // only for what they take
ProductMethod own_method(const GemmProblem& p);
}  // namespace athanor::cuda
