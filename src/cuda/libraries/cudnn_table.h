// The functions of cuDNN that the program calls: its backend (graph) interface; see cublaslt_table.h about tables.
#pragma once
#include <cudnn.h>

#include <type_traits>

#define ATHANOR_CUDNN_FUNCTIONS(F) \
  F(cudnnGetVersion)               \
  F(cudnnGetErrorString)           \
  F(cudnnGetLastErrorString)       \
  F(cudnnCreate)                   \
  F(cudnnDestroy)                  \
  F(cudnnSetStream)                \
  F(cudnnGetStream)                \
  F(cudnnBackendCreateDescriptor)  \
  F(cudnnBackendDestroyDescriptor) \
  F(cudnnBackendFinalize)          \
  F(cudnnBackendSetAttribute)      \
  F(cudnnBackendGetAttribute)      \
  F(cudnnBackendExecute)

namespace athanor {

struct CudnnTable {
#define ATHANOR_MEMBER(name) decltype(&::name) name = nullptr;  // NOLINT(bugprone-macro-parentheses)
  ATHANOR_CUDNN_FUNCTIONS(ATHANOR_MEMBER)
#undef ATHANOR_MEMBER
};

template <class Table, class Visit>
requires std::is_same_v<std::remove_const_t<Table>, CudnnTable>
void for_each_function(Table& table, Visit&& visit) {
#define ATHANOR_VISIT(name) visit(#name, table.name);
  ATHANOR_CUDNN_FUNCTIONS(ATHANOR_VISIT)
#undef ATHANOR_VISIT
}

}  // namespace athanor
