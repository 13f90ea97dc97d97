// A stable sort of row numbers by index, so that rows with equal index are adjacent and in order. Sums over them then
// need no atomics and have a fixed order.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
namespace athanor::cuda {

struct Indices {
  const int* of_row;  // [rows]
  int64_t rows, limit;
  int64_t first = 0;  // subtracted from each index; results outside [0, limit) count as limit - 1
};
// Indices after subtracting `first`, and their row numbers, in sorted order.
struct SortedIndices {
  const int* index;
  const int* row;
};
// The result is stored in scratch, which has sort_scratch() bytes.
SortedIndices sort_indices(const Indices& indices, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda
