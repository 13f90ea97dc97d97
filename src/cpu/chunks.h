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

}  // namespace athanor
