// The functions of NCCL that the program calls; see cublaslt_table.h about tables.
#pragma once
#include <nccl.h>

#include <type_traits>

#define ATHANOR_NCCL_FUNCTIONS(F) \
  F(ncclGetVersion)               \
  F(ncclGetErrorString)           \
  F(ncclGetLastError)             \
  F(ncclGetUniqueId)              \
  F(ncclCommInitRank)             \
  F(ncclCommInitRankConfig)       \
  F(ncclCommSplit)                \
  F(ncclCommFinalize)             \
  F(ncclCommDestroy)              \
  F(ncclCommAbort)                \
  F(ncclCommGetAsyncError)        \
  F(ncclCommCount)                \
  F(ncclCommCuDevice)             \
  F(ncclCommUserRank)             \
  F(ncclMemAlloc)                 \
  F(ncclMemFree)                  \
  F(ncclCommRegister)             \
  F(ncclCommDeregister)           \
  F(ncclCommWindowRegister)       \
  F(ncclCommWindowDeregister)     \
  F(ncclRedOpCreatePreMulSum)     \
  F(ncclRedOpDestroy)             \
  F(ncclReduce)                   \
  F(ncclBroadcast)                \
  F(ncclAllReduce)                \
  F(ncclReduceScatter)            \
  F(ncclAllGather)                \
  F(ncclAlltoAll)                 \
  F(ncclSend)                     \
  F(ncclRecv)                     \
  F(ncclGroupStart)               \
  F(ncclGroupEnd)

namespace athanor {

struct NcclTable {
#define ATHANOR_MEMBER(name) decltype(&::name) name = nullptr;  // NOLINT(bugprone-macro-parentheses)
  ATHANOR_NCCL_FUNCTIONS(ATHANOR_MEMBER)
#undef ATHANOR_MEMBER
};

template <class Table, class Visit>
requires std::is_same_v<std::remove_const_t<Table>, NcclTable>
void for_each_function(Table& table, Visit&& visit) {
#define ATHANOR_VISIT(name) visit(#name, table.name);
  ATHANOR_NCCL_FUNCTIONS(ATHANOR_VISIT)
#undef ATHANOR_VISIT
}

}  // namespace athanor
