// Parts of attention backward by warpgroups (wgmma_backward.cu): a block's rings, a warpgroup's rows, p and ds of the
// pass over keys, and how gradients are written.
#pragma once
#include "cuda/attention/wgmma_tiles.h"
#include "cuda/rotation.h"
namespace athanor::cuda::attention {

#if PTX_SM90A
template <class Smem>
struct Shared {
  Sight<kRows> sight;
  Ring<Smem::kSlots> ring;
  Heads<Smem::kPlaces> heads;

  __device__ __forceinline__ void init() {  // followed by a barrier of the block
    if (threadIdx.x != 0) return;
    ring.init(kConsumers / 32);
    heads.init();
    ptx::fence_mbar_init();
  }
};

// A warpgroup's own rows of a head.
template <class T>
struct Own {
  T *a, *b;           // its first rows of both tensors
  const Seen* group;  // rows of the other side that the warpgroup's rows see
  const Seen* warp;   // rows of the other side that the warp's rows see

  template <class R>
  __device__ __forceinline__ Own(R& smem, int place, const Sight<kRows>& sight) {
    const int first = group_id() * kGroupRows;
    a = smem.a[place] + first * kBoxColumns, b = smem.b[place] + first * kBoxColumns;
    group = sight.seen + first, warp = sight.seen + warp_id() * 16;
  }
};

// For the thread's keys and queries, weigh_keys() computes p and differentiate_keys() computes ds. scale: times
// log2(e).
template <int N>
__device__ __forceinline__ void weigh_keys(Accumulators<1, N>& p, const QueryStats* stats, float scale) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
    const uint4 two = ld16(stats + n * 8 + lane_id() % 4 * 2);
    const float lse[2] = {__uint_as_float(two.x), __uint_as_float(two.z)};
#pragma unroll
    for (int i = 0; i < 4; ++i) p[0][n][i] = ptx::exp2_approx(fmaf(p[0][n][i], scale, -lse[i % 2]));
  }
}
template <int N>
__device__ __forceinline__ void differentiate_keys(Accumulators<1, N>& ds, const Accumulators<1, N>& p,
                                                   const QueryStats* stats) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
    const uint4 two = ld16(stats + n * 8 + lane_id() % 4 * 2);
    const float dy_by_y[2] = {__uint_as_float(two.y), __uint_as_float(two.w)};
#pragma unroll
    for (int i = 0; i < 4; ++i) ds[0][n][i] = p[0][n][i] * (ds[0][n][i] - dy_by_y[i % 2]);
  }
}

// RoPE's backward: rotates a warpgroup's gradients of a head, times `scale` and rounded, back by the angles of their
// rows. Columns that are half a head apart are in registers of one thread. first: the block's first row, of `rows`.
template <class T, int D>
__device__ __forceinline__ void rotate_back(Accumulators<1, D>& d, const Angles& angles, float scale, int first,
                                            int rows) {
  constexpr int kApart = D / 16;
  uint32_t thread = threadIdx.x;
  ptx::pin(thread);  // otherwise values computed from it would occupy registers during all tiles, and too few are free
  const int own = first + static_cast<int>(thread / 32 * 16 + thread % 32 / 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = min(own + h * 8, rows - 1);  // rows beyond it are not stored
    const float* table = angles.cos_sin + int64_t{angles.positions[row]} * D + thread % 4 * 2;
#pragma unroll
    for (int n = 0; n < kApart; ++n) {
      const uint2 cosines = ld8(table + 8 * n), sines = ld8(table + 8 * (n + kApart));
      const float cosine[2] = {__uint_as_float(cosines.x), __uint_as_float(cosines.y)};
      const float sine[2] = {-__uint_as_float(sines.x), -__uint_as_float(sines.y)};
      float *a = d[0][n] + 2 * h, *b = d[0][n + kApart] + 2 * h;
      const uint32_t left = word_of<T>(a[0] * scale, a[1] * scale), right = word_of<T>(b[0] * scale, b[1] * scale);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float2 rotated = rotate(element<T>(&left, e), element<T>(&right, e), cosine[e], sine[e]);
        a[e] = rotated.x, b[e] = rotated.y;
      }
    }
  }
}

// Writes a warpgroup's gradients of a head by write_rows(): times `scale`, and rotated back if there are angles.
template <int D, class T>
__device__ __forceinline__ void write_rotated(T* tile, Accumulators<1, D>& d, const Angles& angles, float scale,
                                              int first, int rows) {
  if (angles.cos_sin) rotate_back<T, D>(d, angles, scale, first, rows);
  const float left = angles.cos_sin ? 1.f : scale;
  const float factor[1][2] = {{left, left}};
  write_rows<D>(tile, d, factor);
}
#endif
}  // namespace athanor::cuda::attention
