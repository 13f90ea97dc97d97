// The second pass of kernels that write partial sums of columns.
#pragma once
#include <cuda_runtime_api.h>

#include "tensor/tensor.h"
namespace athanor::cuda {

// out [columns] += the sums of the columns of partials [rows, columns], in a fixed order; rows are `stride` apart. For
// a few hundred rows at most: one block sums all rows of some columns.
struct PartialSums {
  Tensor out;  // f32 or bf16
  const float* partials;
  int64_t rows, columns, stride;
};
void add_partial_sums(const PartialSums& sums, cudaStream_t stream);
}  // namespace athanor::cuda
