// Shared by this folder's GEMMs by warpgroups (sm_90a): tiles of operands in shared memory and the loop over K,
// clusters of two blocks, the order in which they take the tiles of d, and stores of results through panels of shared
// memory.
#pragma once
#include <algorithm>

#include "cuda/activation.h"
#include "cuda/warpgroups.h"
namespace athanor::cuda {

constexpr int kColumns = 256;            // columns of d per tile
constexpr int kSlots = 4;                // slots of the ring: 48 KiB each
constexpr int kTerms = 64;               // elements along K per step
constexpr int kPair = 2;                 // blocks per cluster
constexpr int kWarps = kConsumers / 32;  // warps that multiply and store
constexpr int kWarpRows = 16;            // rows per panel
constexpr int kPanels = 2;               // panels that a warp may be storing at once

// Operands of one step. An operand with K contiguous in memory has rows [rows, 64]; one with K across the rows has
// panels [64 k, 64].
template <class T>
struct Slot {
  T a[kRows * kTerms], b[kColumns * kTerms];
};

// Work of all clusters: numbers of tiles along the rows of d and along its columns, and of steps along K for each tile.
struct Tiles {
  int rows, columns, steps;
};

// Persistent blocks: as many pairs as the GPU holds at once, at most one for each tile.
inline dim3 grid_of(const Tiles& tiles) {
  return {grid_size(kPair * std::clamp<int64_t>(multiprocessors() / kPair, 1, int64_t{tiles.rows} * tiles.columns))};
}

#if PTX_SM90A
constexpr int kBand = 8;  // tiles along rows that are computed at about the same time, so that L2 has their operands

constexpr int kPanel = kTerms * kBoxColumns;  // elements of an operand's panel

// Sums [64, 256] of the warpgroup's rows. The element in column 8 n + lane % 4 * 2 + e and in row 8 h + lane / 4 of the
// warp has the index 4 n + 2 h + e.
using Sums = float[kColumns / 2];

// Sums over the steps of a tile: issue(slot, step) starts the wgmmas of a filled slot, which is released while those of
// the next slot run.
template <class AnyRing, class Issue>
__device__ __forceinline__ void sum_steps(Sums& sums, AnyRing& ring, PipelineState<kSlots>& pipe, uint32_t steps,
                                          Issue issue) {
  int last = 0;       // slot of the previous step
  uint32_t step = 0;  // pinned, otherwise the compiler peels the first step
  ptx::pin(step);
#pragma unroll 1
  do {
    const int slot = ring.wait(pipe);
    issue(slot, step);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (step > 0) ring.release(last);
    last = slot;
  } while (++step < steps);
  ptx::wgmma_wait<0>(sums);
  ring.release(last);
}

__device__ __forceinline__ int pair_rank() { return static_cast<int>(blockIdx.x) % kPair; }

// Calls visit(row, column) with the coordinates of each of this cluster's tiles, in tiles. They are ordered in bands of
// kBand rows, and column by column within a band.
template <class F>
__device__ __forceinline__ void for_tiles(const Tiles& tiles, F visit) {
  const int clusters = static_cast<int>(gridDim.x) / kPair;
  for (int i = static_cast<int>(blockIdx.x) / kPair; i < tiles.rows * tiles.columns; i += clusters) {
    const int band = i / (kBand * tiles.columns), within = i - band * kBand * tiles.columns;
    const int height = min(kBand, tiles.rows - band * kBand);
    visit(band * kBand + within % height, within / height);
  }
}

template <class T>
__device__ __forceinline__ float2 two_of(const void* p, int64_t i) {  // i is even
  const T* first = static_cast<const T*>(p) + i;
  if constexpr (std::is_same_v<T, float>) {
    const uint2 words = ld8(first);
    return {__uint_as_float(words.x), __uint_as_float(words.y)};
  } else {
    const uint32_t word = ld4(first);
    return {element<T>(&word, 0), element<T>(&word, 1)};
  }
}

// Called by a warp: write() fills a panel that no store reads any more, store() starts a TMA copy from it.
template <class Write, class Store>
__device__ __forceinline__ void through_panel(Write write, Store store) {
  if (lane_id() == 0) ptx::bulk_wait_read<kPanels - 1>();
  __syncwarp();
  write();
  ptx::fence_proxy_async();
  __syncwarp();
  if (lane_id() == 0) {
    store();
    ptx::bulk_commit();
  }
}

// A lane's words of two elements of 64 columns of its warp's rows: [n][h].
using Words = uint32_t[8][2];

// Calls visit(n, h, bytes) with the offset of each of the lane's words in a panel of 16-bit elements: 64 columns of a
// warp's rows.
template <class F>
__device__ __forceinline__ void for_words(F visit) {
  const int lane = lane_id();
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) visit(n, h, (8 * h + lane / 4) * kRowBytes + (n ^ lane / 4) * 16 + lane % 4 * 4);
  }
}
__device__ __forceinline__ void write_panel(void* panel, const Words& words) {
  auto* bytes = static_cast<unsigned char*>(panel);
  for_words([&](int n, int h, int at) { st4(bytes + at, words[n][h]); });
}
__device__ __forceinline__ void read_panel(Words& words, const void* panel) {
  const auto* bytes = static_cast<const unsigned char*>(panel);
  for_words([&](int n, int h, int at) { words[n][h] = ld4(bytes + at); });
}

// SwiGLU of panel c of a tile whose first 128 columns are gates and the others the same columns of up: gate and up are
// rounded to T, and y = weight[h] silu(gate) up is computed from the rounded values.
template <class T>
__device__ __forceinline__ void swiglu_words(Words& gate, Words& up, Words& y, const Sums& sums, int c,
                                             const float (&weight)[2]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int g = (8 * c + n) * 4 + 2 * h, u = g + kColumns / 4;
      gate[n][h] = word_of<T>(sums[g], sums[g + 1]);
      up[n][h] = word_of<T>(sums[u], sums[u + 1]);
      y[n][h] = word_of<T>(swiglu(element<T>(&gate[n][h], 0), element<T>(&up[n][h], 0)) * weight[h],
                           swiglu(element<T>(&gate[n][h], 1), element<T>(&up[n][h], 1)) * weight[h]);
    }
  }
}
#endif
}  // namespace athanor::cuda
