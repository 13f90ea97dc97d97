// How memory-bound ops cut their work: pieces of about kChunkElements elements, a function of shapes alone, so that
// results have the same bits for any number of threads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "tensor/tensor.h"

namespace athanor {

constexpr int64_t kChunkElements = 32768;  // 128 KiB of f32: far above the cost of handing out a chunk, below an L2

// Rows per chunk.
inline int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, cols)); }

// The elements of a tensor that has no gaps.
template <class T>
T* flat(const Tensor& t) {
  CHECK(t.shape.rank != 2 || t.contiguous(), "a tensor ", t.shape, " has row stride ", t.row_stride,
        ", expected contiguous rows");
  return t.as<T>();
}

// Rows that are summed into one partial result each; the partials are then added in order.
struct RowBlocks {
  static constexpr int64_t kMinRows = 32, kMaxBlocks = 128;  // a partial row costs as much traffic as half a row
  int64_t rows_per_block, count;
  explicit RowBlocks(int64_t rows)
      : rows_per_block(std::max(kMinRows, div_ceil(rows, kMaxBlocks))), count(div_ceil(rows, rows_per_block)) {}
};

}  // namespace athanor
