// What attention backward by warpgroups shares between seven products (wgmma_backward.cu) and five
// (wgmma_ordered_backward.cu): a block's rings, a warpgroup's rows, and p and ds of its keys.
#pragma once
#include "cuda/attention/wgmma_tiles.h"
namespace athanor::cuda::attention {

#if PTX_SM90A
template <class Room>
struct Shared {
  Sight<kRows> sight;
  Ring<Room::kSlots> ring;
  Heads<Room::kPlaces> heads;

  __device__ __forceinline__ void init() {  // followed by a barrier of the block
    if (threadIdx.x != 0) return;
    ring.init(kConsumers / 32);
    heads.init();
    ptx::fence_mbar_init();
  }
};

// A warpgroup's rows of a head.
template <class T>
struct Own {
  T *a, *b;           // its first rows
  const Seen* group;  // what they see
  const Seen* warp;   // what the warp's rows see

  template <class R>
  __device__ __forceinline__ Own(R& room, int place, const Sight<kRows>& sight) {
    const int first = group_id() * kGroupRows;
    a = room.a[place] + first * kBoxColumns, b = room.b[place] + first * kBoxColumns;
    group = sight.seen + first, warp = sight.seen + warp_id() * 16;
  }
};

// p, then ds, for the thread's keys and queries. scale: times log2(e).
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
#endif
}  // namespace athanor::cuda::attention
