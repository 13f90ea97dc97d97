// A stable sort of row numbers by an index, so that all rows of an index are neighbours in their own order. With it
// sums over rows of equal index need no atomics and have one order.
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
SortedIndices sort_indices(const Indices& indices, void* scratch, cudaStream_t stream);  // the result lies in scratch
}  // namespace athanor::cuda
