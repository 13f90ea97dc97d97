// The functions of the CUDA driver that the program calls besides the runtime; see function_table.h.
#pragma once
#include <cuda.h>

#include "cuda/libraries/function_table.h"

#define ATHANOR_DRIVER_FUNCTIONS(F) \
  F(cuInit)                         \
  F(cuDriverGetVersion)             \
  F(cuGetErrorName)                 \
  F(cuGetErrorString)               \
  F(cuTensorMapEncodeTiled)

namespace athanor {

ATHANOR_FUNCTION_TABLE(DriverTable, ATHANOR_DRIVER_FUNCTIONS)

}  // namespace athanor
