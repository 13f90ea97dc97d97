// The functions of cuDNN that the program calls: its backend (graph) interface; see function_table.h.
#pragma once
#include <cudnn.h>

#include "cuda/libraries/function_table.h"

#define ATHANOR_CUDNN_FUNCTIONS(F) \
  F(cudnnGetVersion)               \
  F(cudnnGetErrorString)           \
  F(cudnnGetLastErrorString)       \
  F(cudnnCreate)                   \
  F(cudnnDestroy)                  \
  F(cudnnSetStream)                \
  F(cudnnBackendCreateDescriptor)  \
  F(cudnnBackendDestroyDescriptor) \
  F(cudnnBackendFinalize)          \
  F(cudnnBackendSetAttribute)      \
  F(cudnnBackendGetAttribute)      \
  F(cudnnBackendExecute)

namespace athanor {

ATHANOR_FUNCTION_TABLE(CudnnTable, ATHANOR_CUDNN_FUNCTIONS)

}  // namespace athanor
