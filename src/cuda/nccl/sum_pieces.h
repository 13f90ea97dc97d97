// What each rank adds up of a sum over ranks of bf16 numbers: its piece, of all ranks' values.
#pragma once
#include <cuda_runtime_api.h>

#include "tensor/tensor.h"
namespace athanor::cuda {

struct SumOfPieces {
  Tensor out;     // [n] bf16; may be `own`
  Tensor own;     // [n] bf16: this rank's values
  Tensor others;  // bf16: those of rank r from element r * stride on, but for this rank's
  int64_t stride;
  int ranks, rank;
};
// In f32, in the order of ranks, rounded once to nearest.
void sum_pieces(const SumOfPieces& sum, cudaStream_t stream);
}  // namespace athanor::cuda
