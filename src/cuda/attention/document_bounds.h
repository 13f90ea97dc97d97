// The table of spans in the form that cuDNN's attention needs: the begin or end of each token's document.
#pragma once
#include <cuda_runtime_api.h>

#include "tensor/tensor.h"
namespace athanor::cuda {

// Positions are relative to the sequence. Every span lies in one sequence, and its queries are its keys; a token in no
// span is a document by itself. The kernel reads the table when it runs.
struct DocumentBounds {
  int32_t* bounds;  // [N]: for each token, the first token of its document, or the one after the last
  bool ends;        // true: the one after the last
  int64_t rows;     // N, the number of tokens
  int64_t tokens;   // per sequence; N is a multiple
  Tensor spans;     // [S, 6] i32
};
void run(const DocumentBounds& of, cudaStream_t stream);
}  // namespace athanor::cuda
