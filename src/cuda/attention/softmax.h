// The running softmax of attention forward [Dao et al. 2022, alg. 1], over accumulators in the layout of tiles.h.
#pragma once
#include "cuda/attention/tiles.h"
#include "cuda/quantize/amax.h"
namespace athanor::cuda::attention {

// State of a warp's rows. top: maximum of q·k so far; sum: sum of exp2(scale (q·k - top)) so far.
template <int R>
struct Softmax {
  float top[R][2], sum[R][2] = {};

  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int i = 0; i < 2 * R; ++i) top[i / 2][i % 2] = -INFINITY;
  }
  // s: q·k of further keys, -inf where masked; becomes their weights. shrink: factor for earlier weights and sums.
  // scale: times log2(e), > 0.
  template <int N>
  __device__ __forceinline__ void add(Accumulators<R, N>& s, float scale, float (&shrink)[R][2]) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float now = top[r][h];
#pragma unroll
        for (int n = 0; n < N / 8; ++n) now = fmaxf(now, fmaxf(s[r][n][2 * h], s[r][n][2 * h + 1]));
        now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
        now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
        const float base = now == -INFINITY ? 0.f : now * scale;  // 0 if no key was visible so far
        shrink[r][h] = ptx::exp2_approx(fmaf(top[r][h], scale, -base));
        top[r][h] = now;
        float total = sum[r][h] * shrink[r][h];
#pragma unroll
        for (int n = 0; n < N / 8; ++n) {
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i)
            total += s[r][n][i] = ptx::exp2_approx(fmaf(s[r][n][i], scale, -base));
        }
        sum[r][h] = total;
      }
    }
  }
};

template <int R, int D>
__device__ __forceinline__ void multiply_by_row(Accumulators<R, D>& o, const float (&factor)[R][2]) {
  for_elements<R, D>(o, [&](float& x, int r, int h, int) { x *= factor[r][h]; });
}

// Raises `amax` to the maximum, as float bits, of y = o times factor in the warp's rows, before y is rounded. Rows past
// the end of the tensor see no key: they contribute 0, or NaN if inputs are not finite, but then all rows of their tile
// do.
template <int R, int D>
__device__ __forceinline__ void add_amax(uint32_t& amax, const Accumulators<R, D>& o, const float (&factor)[R][2]) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t of_row = 0;  // maximum before multiplication by the row's factor, which keeps the order
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int i = 2 * h; i < 2 * h + 2; ++i) of_row = Max{}(of_row, magnitude(o[r][n][i]));
      }
      amax = Max{}(amax, magnitude(__uint_as_float(of_row) * factor[r][h]));
    }
  }
}

// Writes lse of the warp's rows, starting at `row`, and raises the head's maximum score. factor: 1 / sum of weights, 0
// without keys.
template <int R, class T>
__device__ __forceinline__ void finish(float (&factor)[R][2], const Softmax<R>& softmax, const Forward<T>& a, int row,
                                       int head) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = softmax.sum[r][h];  // sum over this thread's columns only
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      factor[r][h] = sum == 0 ? 0.f : 1.f / sum;
      const int query = row + r * 16 + h * 8 + lane_id() / 4;
      if (lane_id() % 4 == 0 && query < a.in.spans.queries)  // lse is -inf where no key is seen
        a.lse[static_cast<int64_t>(query) * a.in.heads + head] = softmax.top[r][h] * a.in.scale + logf(sum);
    }
  }
  if (!a.top) return;
  float most = -INFINITY;
#pragma unroll
  for (int i = 0; i < 2 * R; ++i) most = fmaxf(most, softmax.top[i / 2][i % 2]);
  raise_top(a.top + head, most * a.in.scale);
}
}  // namespace athanor::cuda::attention
