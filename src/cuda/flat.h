// Flat buffers split into tiles. A thread has `Chunks` chunks of E elements of a tile, one block width apart: accesses
// of a warp are contiguous, and all loads of a thread are in flight at once.
#pragma once
#include <algorithm>

#include "cuda/host_tools.h"
#include "cuda/vectors.h"
namespace athanor::cuda {

constexpr int kTileThreads = 256;

// Elements that fill 16 bytes in the widest of the types; a narrower type then moves 8 bytes at a time.
template <class... T>
constexpr int kChunk = std::min({kVector<T>...});

template <int E, int Chunks>
constexpr int64_t kTile = int64_t{E} * Chunks* kTileThreads;

struct Flat {
  int64_t n;
  bool vectors;  // every buffer starts on a 16-byte boundary
};
template <class... P>
Flat flat(const Tensor& like, const P*... buffers) {
  return {like.numel(), ((reinterpret_cast<uintptr_t>(buffers) % 16 == 0) && ...)};
}

template <int E, int Chunks, bool Whole>
struct Tile {
  int64_t first;  // this thread's first element
  Flat flat;

  __device__ __forceinline__ int64_t at(int chunk) const { return first + chunk * int64_t{E * kTileThreads}; }
  __device__ __forceinline__ int left(int chunk) const {  // elements left for a chunk
    const int64_t rest = flat.n - at(chunk);
    return Whole || rest > E ? E : static_cast<int>(rest);
  }
  __device__ __forceinline__ bool vector(int chunk) const { return Whole || (flat.vectors && left(chunk) == E); }

  template <class T>
  __device__ __forceinline__ void load(float (&values)[Chunks][E], const T* p) const {  // 0 past the end
#pragma unroll
    for (int c = 0; c < Chunks; ++c) load_chunk(values[c], p + at(c), 0, left(c), vector(c));
  }
  template <class T>
  __device__ __forceinline__ void store(T* p, const float (&values)[Chunks][E]) const {
#pragma unroll
    for (int c = 0; c < Chunks; ++c) store_chunk(p + at(c), values[c], 0, left(c), vector(c));
  }
};

// Calls work(Tile) for tile `number`.
template <int E, int Chunks, class Work>
__device__ __forceinline__ void on_tile(const Flat& flat, int64_t number, Work work) {
  const int64_t start = number * kTile<E, Chunks>, first = start + static_cast<int>(threadIdx.x) * E;
  if (flat.vectors && start + kTile<E, Chunks> <= flat.n) {
    work(Tile<E, Chunks, true>{first, flat});
  } else {
    work(Tile<E, Chunks, false>{first, flat});
  }
}

// Launch with one block per tile.
template <int E, int Chunks>
LaunchConfig tiles(const Flat& flat, cudaStream_t stream) {
  return {dim3(grid_size(div_ceil(flat.n, kTile<E, Chunks>))), dim3(kTileThreads), 0, stream};
}
}  // namespace athanor::cuda
