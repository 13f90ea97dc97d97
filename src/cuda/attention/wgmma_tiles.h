// Tiles of 16-bit rows for attention by warpgroups (sm_90a): TMA into a ring of slots in shared memory, products by
// wgmma. A tile [Rows, D] is stored as panels of 64 columns, one after the other; a row of a panel is 128 swizzled
// bytes.
#pragma once
#include "cuda/attention/tiles.h"
#include "cuda/ptx/ptx_wgmma.h"
#include "cuda/ptx/tensor_map.h"
namespace athanor::cuda::attention {

constexpr int kGroupRows = 64, kGroupThreads = 128;  // per warpgroup
constexpr int kRowBytes = kBoxColumns * 2;           // per row of a panel
// A block: two consumer warpgroups with 64 rows each, and one warpgroup with the producer warp.
constexpr int kGroups = 2, kRows = kGroups * kGroupRows, kConsumers = kGroups * kGroupThreads;
constexpr int kThreads = kConsumers + kGroupThreads;
// Kernel images for other GPUs contain no code; has_image() recognizes them by their launch bounds.
constexpr int kImageThreads = PTX_SM90A ? kThreads : 32;

template <class... P>
bool has_image(void (*kernel)(P...)) {
  cudaFuncAttributes image{};
  CUDA_CHECK(find_attributes(image, kernel));
  return image.binaryVersion == 90 && image.maxThreadsPerBlock >= kThreads;
}

#if PTX_SM90A
constexpr int kTailBarrier = 1, kGroupBarrier = 2;  // the second one per warpgroup
// 65,536 registers are 168 per thread: the producer gives up most of its share to the consumers.
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

// The warpgroup's index, by a shuffle, so that the compiler treats it as warp-uniform and keeps descriptors in uniform
// registers.
__device__ __forceinline__ int group_id() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroupThreads, 0); }

// Slots are filled and emptied in turn. Before `full` completes its kth phase, `empty` must have completed k - 1.
template <int Slots>
struct Turn {
  int slot = 0;
  uint32_t parity = 0;  // of the phase that fills the slot
  __device__ __forceinline__ void advance() {
    if (++slot == Slots) slot = 0, parity ^= 1;
  }
};
template <int Slots>
struct Ring {
  uint64_t full[Slots], empty[Slots];
  int next[Slots];  // the first row of the tensor's next tile, set by the producer

  // Called by one thread, followed by a barrier of the block. consumers: number of warps that release each slot.
  __device__ __forceinline__ void init(uint32_t consumers) {
    for (int i = 0; i < Slots; ++i) {
      ptx::mbar_init(&full[i], 1);
      ptx::mbar_init(&empty[i], consumers);
    }
  }
  // Called by the producer warp: one thread waits for the slot and calls copy(slot). Only that thread waits: another
  // could come after the consumers have emptied the slot again, and wait for a phase that has passed.
  template <class F>
  __device__ __forceinline__ void fill(Turn<Slots>& turn, int next_row, F copy) {
    if (lane_id() == 0) {
      ptx::mbar_wait(&empty[turn.slot], turn.parity ^ 1);  // does not wait the first time
      next[turn.slot] = next_row;
      copy(turn.slot);
    }
    turn.advance();
  }
  // Waits until the current slot is filled.
  __device__ __forceinline__ int wait(Turn<Slots>& turn) {
    const int slot = turn.slot;
    ptx::mbar_wait(&full[slot], turn.parity);
    turn.advance();
    return slot;
  }
  // The same for the slot after `slot`; slot is even, and so is the number of slots.
  __device__ __forceinline__ int wait_next(Turn<Slots>& turn, int slot) {
    ptx::mbar_wait(&full[slot + 1], turn.parity);
    turn.advance();
    return slot + 1;
  }
  __device__ __forceinline__ void release(int slot) {  // called by whole warps
    __syncwarp();
    if (lane_id() == 0) ptx::mbar_arrive(&empty[slot]);
  }
};

// tile [Rows, D] = the rows from `row` on, D columns from `column` on; called by one thread. also: bytes of another
// copy that signals `full`.
template <int Rows, int D, class T>
__device__ __forceinline__ void copy_tile(T* tile, const CUtensorMap& map, uint64_t* full, int column, int row,
                                          uint32_t also = 0) {
  ptx::mbar_expect_bytes(full, Rows * D * sizeof(T) + also);
#pragma unroll
  for (int c = 0; c < D; c += kBoxColumns) ptx::tma_load(tile + c * Rows, &map, full, column + c, row);
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

// ---- products of a warpgroup, one wgmma group each; the caller waits. Descriptors are in units of 16 bytes.

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
    ptx::wgmma<T, T, ptx::Major::kRows>(flat<D>(o), w[k], y + k * 16 * (kRowBytes / 16), true);
  ptx::wgmma_commit();
}

// Converts accumulators to the left operand of the next product.
template <class T, int N>
__device__ __forceinline__ void pack_weights(uint32_t (&w)[N / 16][4], const Accumulators<1, N>& s) {
#pragma unroll
  for (int n = 0; n < N / 8; ++n) {
    w[n / 2][n % 2 * 2] = word_of<T>(s[0][n][0], s[0][n][1]);
    w[n / 2][n % 2 * 2 + 1] = word_of<T>(s[0][n][2], s[0][n][3]);
  }
}

// Stores a warpgroup's results to the tensor at (column, row), through its rows of a tile [kRows, D] that it no longer
// needs; `tile`: the first of these rows.
struct Corner {
  int column, row;
};
template <int D, class T>
__device__ __forceinline__ void store_rows(const CUtensorMap& map, const Corner& to, T* tile,
                                           const Accumulators<1, D>& values, const float (&factor)[1][2]) {
  const int lane = lane_id(), group = group_id();
  ptx::bar_sync(kGroupBarrier + group, kGroupThreads);  // reads of these rows are done
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
  ptx::fence_proxy_async();
  ptx::bar_sync(kGroupBarrier + group, kGroupThreads);
  if (threadIdx.x % kGroupThreads == 0) {
#pragma unroll
    for (int c = 0; c < D; c += kBoxColumns) ptx::tma_store(&map, tile + c * kRows, to.column + c, to.row);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
  }
}
#endif
}  // namespace athanor::cuda::attention
