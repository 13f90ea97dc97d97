// A rank's part of a sum of bf16 values over ranks: the sum of its piece over all ranks.
#pragma once
#include <cuda_runtime_api.h>

#include "tensor/tensor.h"
namespace athanor::cuda {

struct SumOfPieces {
  Tensor out;     // [n] bf16; may be `own`
  Tensor own;     // [n] bf16: this rank's values
  Tensor others;  // bf16 values of the other ranks; those of rank r start at element r * stride
  int64_t stride;
  int ranks, rank;
};
// Sums in f32, in the order of ranks, and rounds once to nearest.
void sum_pieces(const SumOfPieces& sum, cudaStream_t stream);
}  // namespace athanor::cuda
