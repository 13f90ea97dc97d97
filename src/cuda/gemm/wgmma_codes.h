// Products of codes of 8 bits by the program's own kernel, for compute capability 9.0, beside cuBLASLt's.
#pragma once
#include <cuda_runtime_api.h>

#include "ops/gemm_problem.h"
#include "ops/tuning.h"
namespace athanor::cuda {

// d (+)= a b^T of codes times scales (+ bias, + aux). The scales lie in device memory as the library reads them
// (ScaleLayout): one for all or one per row, of both factors; or one per 128 terms of a row of a, and of b too or one
// per square of 128.
struct CodesToMultiply {
  Gemm op;
  ScaleLayout a_layout{}, b_layout{};
  const float *a_scales = nullptr, *b_scales = nullptr;
  bool fast = false;         // sums stay in the tensor cores' registers, of fewer bits than f32 has; of no blocks
  uint32_t* amax = nullptr;  // ScaledGemm::amax, as bits
};

// Whether the kernel computes the problem on the current GPU. Depends on the GPU, the build, and the problem alone.
bool wgmma_takes_codes(const GemmProblem& p, int capability);
// Only for what it takes. Launches one kernel, without scratch memory.
void multiply_codes_by_wgmma(const CodesToMultiply& product, cudaStream_t stream);
ProductMethod wgmma_codes_method();
}  // namespace athanor::cuda
