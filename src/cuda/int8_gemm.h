// GEMM of int8 values, which only the CPU computes: int8 weights on a GPU are rejected earlier, with a message.
#pragma once
#include <cuda_runtime_api.h>

#include "base/error.h"
#include "ops/int8_gemm.h"
namespace athanor::cuda {

inline void run(const Int8Gemm& op, void*, cudaStream_t) {
  throw Error(cat(op.kName, ": runs on the CPU alone, got a GPU; set device to cpu"), Exit::usage);
}
}  // namespace athanor::cuda
