// The ops that this folder's kernels compute: run(op, scratch, stream) launches; scratch(op) is the temporary memory in
// bytes (scratch.h). run() is not defined for Gemm and ScaledGemm, which cuBLASLt computes, and for Orthogonalize,
// which runs in parts; cuDNN may compute attention; see cuda_ops.h. Kernels do not check indices: data sets and prompts
// are validated against the vocabulary earlier.
#pragma once
#include <cuda_runtime_api.h>

#include "cuda/scratch.h"
#include "ops/ops.h"
namespace athanor::cuda {

#define ATHANOR_OP(Op) void run(const Op& op, void* scratch, cudaStream_t stream);
ATHANOR_EACH_OP(ATHANOR_OP)
#undef ATHANOR_OP

// Only the CPU multiplies int8 values: int8 weights on a GPU are rejected earlier, with a message.
inline void run(const Int8Gemm& op, void*, cudaStream_t) {
  throw Error(cat(op.kName, ": runs on the CPU alone, got a GPU; set device to cpu"), Exit::usage);
}
}  // namespace athanor::cuda
