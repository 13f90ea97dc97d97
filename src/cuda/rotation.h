// RoPE's rotation of two elements that are half a head apart, with the same order of operations wherever it is
// computed.
#pragma once
#include "cuda/launch.h"
namespace athanor::cuda {

// (a, b) -> (a cos - b sin, b cos + a sin)
__device__ __forceinline__ float2 rotate(float a, float b, float cosine, float sine) {
  return {fmaf(-b, sine, a * cosine), fmaf(a, sine, b * cosine)};
}

}  // namespace athanor::cuda
