// Tiles of 16-bit rows for attention by warpgroups (sm_90a): TMA into a ring of slots in shared memory, GEMMs by wgmma.
// A tile [Rows, D] is stored as panels of 64 columns, one after the other; a row of a panel is 128 swizzled bytes.
#pragma once
#include "cuda/attention/tiles.h"
#include "cuda/warpgroups.h"
namespace athanor::cuda::attention {

#if PTX_SM90A
// named barriers; one per warpgroup from kGroupBarrier on
constexpr int kTailBarrier = 1, kGroupBarrier = 2;
constexpr int kProducer = kConsumers / 32, kStorer = kProducer + 1;  // warp indices

// A rotation of buffers ("places") for a block's own rows, one head after the other: the producer copies the rows of a
// head in, consumers write their results to the same place, and a separate warp stores these. Therefore consumers wait
// neither for the copies of the next head nor for the stores of the previous one.
template <int Places>
struct Heads {
  uint64_t full[Places], results[Places], empty[Places];

  // Called by one thread, followed by a barrier of the block.
  __device__ __forceinline__ void init() {
    for (int i = 0; i < Places; ++i) {
      ptx::mbar_init(&full[i], 1);
      ptx::mbar_init(&results[i], kConsumers / 32);
      ptx::mbar_init(&empty[i], 1);
    }
  }
  // Called by the producer warp; copy(place) makes `full` expect the copy's bytes, once.
  template <class F>
  __device__ __forceinline__ void fill(PipelineState<Places>& pipe, F copy) {
    if (lane_id() == 0) {
      ptx::mbar_wait(&empty[pipe.slot], pipe.parity ^ 1);  // returns at once for the first use of each place
      copy(pipe.slot);
    }
    pipe.advance();
  }
  // Signals `full` without copying rows, for heads [head, end) that see nothing.
  __device__ __forceinline__ void fill_none(int head, int end) {
    PipelineState<Places> pipe;
#pragma unroll 1
    for (; head < end; ++head) fill(pipe, [&](int place) { ptx::mbar_arrive(&full[place]); });
  }
  __device__ __forceinline__ int wait(PipelineState<Places>& pipe) {
    const int place = pipe.slot;
    ptx::mbar_wait(&full[place], pipe.parity);
    pipe.advance();
    return place;
  }
  // Called by each consumer warp after it has written its results.
  __device__ __forceinline__ void publish(int place) {
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane_id() == 0) ptx::mbar_arrive(&results[place]);
  }
  // Called by the storing warp: store(place, head) begins to store a head's results.
  template <class F>
  __device__ __forceinline__ void store_all(int head, int end, F store) {
    if (lane_id() != 0) return;
    PipelineState<Places> pipe;
#pragma unroll 1
    for (; head < end; ++head) {
      ptx::mbar_wait(&results[pipe.slot], pipe.parity);
      store(pipe.slot, head);
      ptx::bulk_commit();
      ptx::bulk_wait_read<0>();
      ptx::mbar_arrive(&empty[pipe.slot]);
      pipe.advance();
    }
  }
};

// tile [Rows, D] = the rows from `row` on, D columns from `column` on; called by one thread. copy_tile() also makes
// `full` expect its bytes plus `also`, the bytes of further copies that signal it.
template <int Rows, int D, class T>
__device__ __forceinline__ void copy_panels(T* tile, const CUtensorMap& map, uint64_t* full, int column, int row) {
#pragma unroll
  for (int c = 0; c < D; c += kBoxColumns) ptx::tma_load(tile + c * Rows, &map, full, column + c, row);
}
template <int Rows, int D, class T>
__device__ __forceinline__ void copy_tile(T* tile, const CUtensorMap& map, uint64_t* full, int column, int row,
                                          uint32_t also = 0) {
  ptx::mbar_expect_bytes(full, Rows * D * sizeof(T) + also);
  copy_panels<Rows, D>(tile, map, full, column, row);
}
// The reverse of copy_panels(): stores all rows of a block, without commit.
template <int D, class T>
__device__ __forceinline__ void store_tile(const CUtensorMap& map, const T* tile, int column, int row) {
#pragma unroll
  for (int c = 0; c < D; c += kBoxColumns) ptx::tma_store(&map, tile + c * kRows, column + c, row);
}

// Clears the rows of a tile [Rows, D] from `from` on; called by all consumers. Rows after the last visible one may
// contain NaN, which a weight of 0 would not remove. Call publish_rows() afterwards.
template <int Rows, int D, class T>
__device__ __forceinline__ void clear_rows(T* tile, int from) {
  constexpr int kChunks = D / 8, kPanelChunks = kBoxColumns / 8;
  for (int i = static_cast<int>(threadIdx.x); i < (Rows - from) * kChunks; i += kConsumers) {
    const int row = from + i / kChunks, chunk = i % kChunks;
    st16(tile + (chunk / kPanelChunks * Rows + row) * kBoxColumns + chunk % kPanelChunks * 8, make_uint4(0, 0, 0, 0));
  }
}
__device__ __forceinline__ void publish_rows() {
  ptx::fence_proxy_async();
  ptx::bar_sync(kTailBarrier, kConsumers);
}

// Accumulators<1, N> as an array for wgmma, in the same order.
template <int N>
__device__ __forceinline__ float (&flat(Accumulators<1, N>& a))[N / 2] {
  return reinterpret_cast<float(&)[N / 2]>(a);
}

// ---- GEMMs of a warpgroup, one wgmma group each; the caller waits. Descriptors are in units of 16 bytes.

// s [64, N] = A B^T: a is the warpgroup's first row of a tile [ARows, D], b a tile [N, D].
template <int D, int ARows, int N, class T>
__device__ __forceinline__ void wgmma_rows(Accumulators<1, N>& s, const T* a, const T* b) {
  const uint64_t x = ptx::matrix_descriptor(a), y = ptx::matrix_descriptor(b);
  ptx::wgmma_fence(s);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const int panel = k / 4, within = k % 4 * 2;
    ptx::wgmma<T>(flat<N>(s), x + panel * ARows * (kRowBytes / 16) + within, y + panel * N * (kRowBytes / 16) + within,
                  k > 0);
  }
  ptx::wgmma_commit();
}

// o [64, D] += W B: weights w of 64 rows, b a tile [N, D].
template <int D, int N, class T>
__device__ __forceinline__ void wgmma_columns(Accumulators<1, D>& o, uint32_t (&w)[N / 16][4], const T* b) {
  const uint64_t y = ptx::matrix_descriptor(b, {.leading = N * kRowBytes});
  ptx::wgmma_fence(o, w);
#pragma unroll
  for (int k = 0; k < N / 16; ++k)
    ptx::wgmma<T, ptx::Major::kRows>(flat<D>(o), w[k], y + k * 16 * (kRowBytes / 16), true);
  ptx::wgmma_commit();
}

// Converts accumulators to the left operand of the next GEMM.
template <class T, int N>
__device__ __forceinline__ void pack_weights(uint32_t (&w)[N / 16][4], const Accumulators<1, N>& s) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
    w[n / 2][n % 2 * 2] = word_of<T>(s[0][n][0], s[0][n][1]);
    w[n / 2][n % 2 * 2 + 1] = word_of<T>(s[0][n][2], s[0][n][3]);
  }
}

// Writes a warpgroup's results over its rows of a tile [kRows, D], which its GEMMs no longer need; `tile`: the first of
// these rows. Call Heads::publish() afterwards.
template <int D, class T>
__device__ __forceinline__ void write_rows(T* tile, const Accumulators<1, D>& values, const float (&factor)[1][2]) {
  const int lane = lane_id();
  ptx::bar_sync(kGroupBarrier + group_id(), kGroupThreads);  // GEMMs of all warps have read these rows
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = warp_id() % 4 * 16 + h * 8 + lane / 4;
      const int chunk = (n % 8) ^ (row % 8);
      st4(tile + n / 8 * kBoxColumns * kRows + row * kBoxColumns + chunk * 8 + lane % 4 * 2,
          word_of<T>(values[0][n][2 * h] * factor[0][h], values[0][n][2 * h + 1] * factor[0][h]));
    }
  }
}
#endif
}  // namespace athanor::cuda::attention
