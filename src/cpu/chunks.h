// Chunking of memory-bound ops: chunks of about kChunkElements elements, which depend only on the shapes, so that
// results are bit-identical for any number of threads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "tensor/tensor.h"

namespace athanor {

constexpr int64_t kChunkElements = 32768;  // 128 KiB of f32: below an L2, and dispatching it costs comparatively little

// Rows per chunk.
inline int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, cols)); }

// Pointer to the elements of a contiguous tensor.
template <class T>
T* flat(const Tensor& t) {
  CHECK(t.shape.rank != 2 || t.contiguous(), "a tensor ", t.shape, " has row stride ", t.row_stride,
        ", expected contiguous rows");
  return t.as<T>();
}

// Blocks of rows, each of which is summed into one partial result; the partial results are then added in order.
struct RowBlocks {
  static constexpr int64_t kMinRows = 32, kMaxBlocks = 128;  // a partial row costs as much traffic as half a row
  int64_t rows_per_block, count;
  explicit RowBlocks(int64_t rows)
      : rows_per_block(std::max(kMinRows, div_ceil(rows, kMaxBlocks))), count(div_ceil(rows, rows_per_block)) {}
};

// Whether pieces of an op may run concurrently, each on one thread, with `scratch` bytes of memory per thread.
inline bool fit_side_by_side(size_t scratch, int threads) {
  constexpr size_t kMostScratch = 64 << 20;  // bytes, for all threads together
  return size_t(threads) * scratch <= kMostScratch;
}
// Whether pieces of an op should run concurrently: threads that take the next piece when they are free must finish
// within 30 % of the mean [Graham 1969]. The last one finishes at most (threads - 1) / threads of the largest piece's
// work after the mean.
inline bool side_by_side(double largest, double all, size_t scratch, int threads) {
  return fit_side_by_side(scratch, threads) && 10 * largest * (threads - 1) <= 3 * all;
}

}  // namespace athanor
