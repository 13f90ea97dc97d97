// A stable sort of row numbers by index, so that rows with equal index are adjacent and in order. Sums over them then
// need no atomics and have a fixed order.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
namespace athanor::cuda {

struct Indices {
  const int* of_row;  // [rows], each in [0, limit)
  int64_t rows, limit;
};
// By position in the sorted order.
struct SortedIndices {
  const int* index;
  const int* row;
};
size_t sort_scratch(int64_t rows, int64_t limit);                                        // bytes; a multiple of 256
SortedIndices sort_indices(const Indices& indices, void* scratch, cudaStream_t stream);  // the result is in scratch
}  // namespace athanor::cuda
