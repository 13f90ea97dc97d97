// GEMM of 8-bit codes: for the CPU alone. Whoever asks for weights in int8 on a GPU has been refused by name before.
#pragma once
#include <cuda_runtime_api.h>

#include "base/error.h"
#include "ops/int8_gemm.h"
namespace athanor::cuda {

inline void run(const Int8Gemm& op, void*, cudaStream_t) {
  throw Error(cat(op.kName, ": runs on the CPU alone, got a GPU; set device to cpu"), Exit::usage);
}
}  // namespace athanor::cuda
