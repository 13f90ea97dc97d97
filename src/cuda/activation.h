// SwiGLU of one element and its gradient, shared by the kernels of cuda/mlp.cu and GEMM epilogues: both give the same
// bits.
//   y = g s(g) u  [Shazeer 2020, eq. 5], s(g) = 1 / (1 + exp(-g));  dg = dy u s (1 + g (1 - s)), du = dy g s
#pragma once
#include "cuda/types.h"
namespace athanor::cuda {

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }
__device__ __forceinline__ float swiglu(float gate, float up) { return gate * sigmoid(gate) * up; }
struct SwigluGradient {
  float gate, up;
};
__device__ __forceinline__ SwigluGradient swiglu_gradient(float dy, float gate, float up) {
  const float s = sigmoid(gate);
  return {dy * up * s * (1.f + gate * (1.f - s)), dy * gate * s};
}

}  // namespace athanor::cuda
