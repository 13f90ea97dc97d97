// The table of spans in the form that cuDNN's attention needs: the begin or end of each token's document.
#pragma once
#include <cuda_runtime_api.h>

#include "tensor/tensor.h"
namespace athanor::cuda {

// Positions are relative to the sequence. Every span is within one sequence, and its queries are its keys; a token in
// no span is a document of its own. The kernel reads the table when it runs.
struct DocumentBounds {
  int32_t* bounds;  // [N]: for each token, the first token of its document, or the end of its document
  bool ends;        // true: the end, which is one past the last token
  int64_t rows;     // N, the number of tokens
  int64_t tokens;   // per sequence; N is a multiple
  Tensor spans;     // [S, 6] i32
};
void run(const DocumentBounds& of, cudaStream_t stream);
}  // namespace athanor::cuda
