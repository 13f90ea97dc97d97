// Helpers of kernels that run one block per row of logits: soft-cap, sums over a row, sharded vocabulary.
#pragma once
#include <algorithm>
#include <limits>

#include "cuda/host_tools.h"
#include "cuda/reduce.h"
#include "ops/vocab_part.h"

namespace athanor::cuda {

constexpr int kRowThreads = 512;
constexpr float kInf = std::numeric_limits<float>::infinity();

__device__ __forceinline__ float soft_cap(float x, float cap) { return cap * tanhf(x / cap); }
// The derivative of soft_cap(): 1 - tanh^2(u) = 4 e / (1 + e)^2, e = exp(-2 |u|), keeps its precision where tanh is
// close to 1.
__device__ __forceinline__ float cap_slope(float x, float cap) {
  const float e = expf(-2 * fabsf(x / cap));
  return 4 * e / ((1 + e) * (1 + e));
}
// A soft-cap of 0 leaves x as it is: capped() is then x, and slope() is 1.
__device__ __forceinline__ float capped(float x, float cap) { return cap > 0 ? soft_cap(x, cap) : x; }
__device__ __forceinline__ float slope(float x, float cap) { return cap > 0 ? cap_slope(x, cap) : 1; }
// The offset that is subtracted from a row's logits before exp: its soft-capped maximum.
__device__ __forceinline__ float base_of(float max, float cap) {
  const float most = capped(max, cap);
  return most == -kInf ? 0.f : most;  // -inf - -inf would be NaN
}
// p times the difference of logarithms, also where p is 0 and the difference is not finite.
__device__ __forceinline__ float weighted(float p, float difference) { return p > 0 ? p * difference : 0; }

// Sum of term(i) over i < n, by all threads of the block. smem: scratch of block_sum().
template <class F>
__device__ __forceinline__ float sum_over(int n, float* smem, F term) {
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) sum += term(i);
  return block_sum(sum, smem);
}

// Tokens of this shard of the vocabulary.
struct Part {
  int first, count;
  __device__ __forceinline__ int column(int id) const {  // -1: in another shard
    const int c = id - first;
    return id >= 0 && c >= 0 && c < count ? c : -1;
  }
};

inline Part part_of(const VocabPart& part) {
  CHECK(part.total < int64_t{1} << 31, "a vocabulary of ", part.total, " is beyond 32-bit indices");
  return {static_cast<int>(part.first), static_cast<int>(part.count)};
}

inline LaunchConfig block_per_row(int64_t rows, int columns, cudaStream_t stream) {
  const int threads = std::min(kRowThreads, round_up(columns, 32));
  return {dim3(grid_size(rows)), dim3(static_cast<unsigned>(threads)), 0, stream};
}

}  // namespace athanor::cuda
