// The functions of NCCL that the program calls; see function_table.h.
#pragma once
#include <nccl.h>

#include <string_view>

#include "cuda/libraries/function_table.h"

// O: optional, null if the library is too old: the functions of memory that NCCL registers.
#define ATHANOR_NCCL_FUNCTIONS(F, O) \
  F(ncclGetVersion)                  \
  F(ncclGetErrorString)              \
  F(ncclGetLastError)                \
  F(ncclGetUniqueId)                 \
  F(ncclCommInitRankConfig)          \
  F(ncclCommFinalize)                \
  F(ncclCommDestroy)                 \
  F(ncclCommAbort)                   \
  F(ncclCommGetAsyncError)           \
  O(ncclMemAlloc)                    \
  O(ncclMemFree)                     \
  O(ncclCommRegister)                \
  O(ncclCommDeregister)              \
  F(ncclBroadcast)                   \
  F(ncclAllReduce)                   \
  F(ncclReduceScatter)               \
  F(ncclAllGather)                   \
  F(ncclSend)                        \
  F(ncclRecv)                        \
  F(ncclGroupStart)                  \
  F(ncclGroupEnd)

#define ATHANOR_NCCL_TABLE(F) ATHANOR_NCCL_FUNCTIONS(F, F)

namespace athanor {

ATHANOR_FUNCTION_TABLE(NcclTable, ATHANOR_NCCL_TABLE)

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
