// The functions of NCCL that the program calls; see cublaslt_table.h about tables.
#pragma once
#include <nccl.h>

#include <string_view>
#include <type_traits>

// O: optional, null if the library is too old. The program calls only the memory functions among them, if they are
// present.
#define ATHANOR_NCCL_FUNCTIONS(F, O) \
  F(ncclGetVersion)                  \
  F(ncclGetErrorString)              \
  F(ncclGetLastError)                \
  F(ncclGetUniqueId)                 \
  O(ncclCommInitRank)                \
  F(ncclCommInitRankConfig)          \
  O(ncclCommSplit)                   \
  F(ncclCommFinalize)                \
  F(ncclCommDestroy)                 \
  F(ncclCommAbort)                   \
  F(ncclCommGetAsyncError)           \
  O(ncclCommCount)                   \
  O(ncclCommCuDevice)                \
  O(ncclCommUserRank)                \
  O(ncclMemAlloc)                    \
  O(ncclMemFree)                     \
  O(ncclCommRegister)                \
  O(ncclCommDeregister)              \
  O(ncclCommWindowRegister)          \
  O(ncclCommWindowDeregister)        \
  O(ncclRedOpCreatePreMulSum)        \
  O(ncclRedOpDestroy)                \
  O(ncclReduce)                      \
  F(ncclBroadcast)                   \
  F(ncclAllReduce)                   \
  F(ncclReduceScatter)               \
  F(ncclAllGather)                   \
  O(ncclAlltoAll)                    \
  F(ncclSend)                        \
  F(ncclRecv)                        \
  F(ncclGroupStart)                  \
  F(ncclGroupEnd)

namespace athanor {

struct NcclTable {
#define ATHANOR_MEMBER(name) decltype(&::name) name = nullptr;  // NOLINT(bugprone-macro-parentheses)
  ATHANOR_NCCL_FUNCTIONS(ATHANOR_MEMBER, ATHANOR_MEMBER)
#undef ATHANOR_MEMBER
};

template <class Table, class Visit>
requires std::is_same_v<std::remove_const_t<Table>, NcclTable>
void for_each_function(Table& table, Visit&& visit) {
#define ATHANOR_VISIT(name) visit(#name, table.name);
  ATHANOR_NCCL_FUNCTIONS(ATHANOR_VISIT, ATHANOR_VISIT)
#undef ATHANOR_VISIT
}

constexpr bool may_be_missing(const NcclTable&, std::string_view function) {
#define ATHANOR_NEEDED(name)
#define ATHANOR_MISSING(name) \
  if (function == #name) return true;
  ATHANOR_NCCL_FUNCTIONS(ATHANOR_NEEDED, ATHANOR_MISSING)
#undef ATHANOR_MISSING
#undef ATHANOR_NEEDED
  return false;
}

}  // namespace athanor
