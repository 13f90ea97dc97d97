// The functions of cuBLASLt that the program calls; see function_table.h.
#pragma once
#include <cublasLt.h>

#include "cuda/libraries/function_table.h"

#define ATHANOR_CUBLASLT_FUNCTIONS(F)     \
  F(cublasLtCreate)                       \
  F(cublasLtDestroy)                      \
  F(cublasLtGetVersion)                   \
  F(cublasLtGetStatusName)                \
  F(cublasLtMatmul)                       \
  F(cublasLtMatmulDescCreate)             \
  F(cublasLtMatmulDescDestroy)            \
  F(cublasLtMatmulDescSetAttribute)       \
  F(cublasLtMatmulDescGetAttribute)       \
  F(cublasLtMatrixLayoutCreate)           \
  F(cublasLtMatrixLayoutDestroy)          \
  F(cublasLtMatmulPreferenceCreate)       \
  F(cublasLtMatmulPreferenceDestroy)      \
  F(cublasLtMatmulPreferenceSetAttribute) \
  F(cublasLtMatmulAlgoGetHeuristic)       \
  F(cublasLtMatmulAlgoCheck)              \
  F(cublasLtMatmulAlgoConfigGetAttribute)

namespace athanor {

ATHANOR_FUNCTION_TABLE(CublasLtTable, ATHANOR_CUBLASLT_FUNCTIONS)

}  // namespace athanor
