// The functions of cuBLASLt that the program calls, as a plain struct of pointers with the header's prototypes. Filled
// from the opened library or by a fake; passed explicitly. Members have the library's names: grep finds every call.
#pragma once
#include <cublasLt.h>

#include <type_traits>

#define ATHANOR_CUBLASLT_FUNCTIONS(F)     \
  F(cublasLtCreate)                       \
  F(cublasLtDestroy)                      \
  F(cublasLtGetVersion)                   \
  F(cublasLtGetStatusName)                \
  F(cublasLtGetStatusString)              \
  F(cublasLtMatmul)                       \
  F(cublasLtMatmulDescCreate)             \
  F(cublasLtMatmulDescDestroy)            \
  F(cublasLtMatmulDescSetAttribute)       \
  F(cublasLtMatmulDescGetAttribute)       \
  F(cublasLtMatrixLayoutCreate)           \
  F(cublasLtMatrixLayoutDestroy)          \
  F(cublasLtMatrixLayoutSetAttribute)     \
  F(cublasLtMatrixLayoutGetAttribute)     \
  F(cublasLtMatmulPreferenceCreate)       \
  F(cublasLtMatmulPreferenceDestroy)      \
  F(cublasLtMatmulPreferenceSetAttribute) \
  F(cublasLtMatmulPreferenceGetAttribute) \
  F(cublasLtMatmulAlgoGetHeuristic)       \
  F(cublasLtMatmulAlgoCheck)              \
  F(cublasLtMatmulAlgoConfigGetAttribute)

namespace athanor {

struct CublasLtTable {
#define ATHANOR_MEMBER(name) decltype(&::name) name = nullptr;  // NOLINT(bugprone-macro-parentheses)
  ATHANOR_CUBLASLT_FUNCTIONS(ATHANOR_MEMBER)
#undef ATHANOR_MEMBER
};

// visit("cublasLtCreate", table.cublasLtCreate), ...
template <class Table, class Visit>
requires std::is_same_v<std::remove_const_t<Table>, CublasLtTable>
void for_each_function(Table& table, Visit&& visit) {
#define ATHANOR_VISIT(name) visit(#name, table.name);
  ATHANOR_CUBLASLT_FUNCTIONS(ATHANOR_VISIT)
#undef ATHANOR_VISIT
}

}  // namespace athanor
