// The fake's functions behind the table, in three files: objects.cc (descriptors), search.cc (algorithms), matmul.cc.
#pragma once
#include "algorithm.h"
#include "fake_cublaslt.h"

namespace emu::fakes {

struct Handle {
  int device = 0;
};

inline constexpr const char* kHandle = "cublasLtHandle_t";
inline constexpr const char* kDesc = "cublasLtMatmulDesc_t";
inline constexpr const char* kLayout = "cublasLtMatrixLayout_t";
inline constexpr const char* kPreference = "cublasLtMatmulPreference_t";

// True and the status if the test planned that this call of the function fails.
bool planned(const char* function, cublasStatus_t* status);

// Checks the handle and the descriptors and reads the product out of them.
Verdict read_call(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const Layouts& layouts, MachineDevice* device,
                  Product* product);

namespace lt {

cublasStatus_t matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                      cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                      const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                      const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                      cudaStream_t stream);
cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                         cublasLtMatmulPreference_t preference, int requested, cublasLtMatmulHeuristicResult_t* results,
                         int* returned);
cublasStatus_t check(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                     const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result);
// Not in the table: for tests, which make algorithms that the heuristic does not offer.
cublasStatus_t set_config(cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulAlgoConfigAttributes_t name,
                          const void* buffer, size_t bytes);
cublasStatus_t get_config(const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulAlgoConfigAttributes_t name,
                          void* buffer, size_t bytes, size_t* written);

}  // namespace lt

}  // namespace emu::fakes
