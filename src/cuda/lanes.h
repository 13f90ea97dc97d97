// A thread's warp in its block, and its lane in the warp; blocks are one-dimensional.
#pragma once
#include "cuda/launch.h"
namespace athanor::cuda {

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / 32; }

}  // namespace athanor::cuda
