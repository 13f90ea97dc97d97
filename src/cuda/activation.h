// SwiGLU of one element, for the kernels of cuda/mlp.cu and of products: both give the same bits.
//   y = g s(g) u  [Shazeer 2020, eq. 5], s(g) = 1 / (1 + exp(-g))
#pragma once
#include "cuda/types.h"
namespace athanor::cuda {

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }
__device__ __forceinline__ float swiglu(float gate, float up) { return gate * sigmoid(gate) * up; }

}  // namespace athanor::cuda
