// CUDA_CHECK: every call of the CUDA runtime is checked; the message has the expression, its place and CUDA's text.
#pragma once
#include <cuda_runtime_api.h>

#include "base/error.h"

#define CUDA_CHECK(expression)                                                                                       \
  do {                                                                                                               \
    const cudaError_t error_ = (expression);                                                                         \
    if (error_ != cudaSuccess) {                                                                                     \
      throw ::athanor::Error(                                                                                        \
          ::athanor::cat("CUDA: ", #expression, " at ", __FILE__, ":", __LINE__, ": ", cudaGetErrorString(error_))); \
    }                                                                                                                \
  } while (false)
