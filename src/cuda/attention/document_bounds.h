// The table of spans in the form that cuDNN's attention takes: for each token where its document begins or ends.
#pragma once
#include <cuda_runtime_api.h>

#include "tensor/tensor.h"
namespace athanor::cuda {

// Places within sequences. Every span lies in one sequence, and its queries are its keys; a token in no span is a
// document by itself. The table is read when the kernel runs.
struct DocumentBounds {
  int32_t* bounds;  // [N]: of each token's document the first token, or the one after the last
  bool ends;        // which of the two
  int64_t rows;     // N
  int64_t tokens;   // of a sequence; N is a multiple
  Tensor spans;     // [S, 6] i32
};
void run(const DocumentBounds& of, cudaStream_t stream);
}  // namespace athanor::cuda
