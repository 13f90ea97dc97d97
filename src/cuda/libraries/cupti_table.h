// The functions of CUPTI that the program calls: activity records, external correlation ids, callbacks for graph nodes;
// see cublaslt_table.h about tables.
#pragma once
#include <cupti.h>

#include <type_traits>

#define ATHANOR_CUPTI_FUNCTIONS(F)          \
  F(cuptiGetVersion)                        \
  F(cuptiGetResultString)                   \
  F(cuptiGetTimestamp)                      \
  F(cuptiSubscribe)                         \
  F(cuptiUnsubscribe)                       \
  F(cuptiEnableCallback)                    \
  F(cuptiGetGraphNodeId)                    \
  F(cuptiActivityEnable)                    \
  F(cuptiActivityDisable)                   \
  F(cuptiActivityRegisterCallbacks)         \
  F(cuptiActivityGetNextRecord)             \
  F(cuptiActivityFlushAll)                  \
  F(cuptiActivityGetNumDroppedRecords)      \
  F(cuptiActivityPushExternalCorrelationId) \
  F(cuptiActivityPopExternalCorrelationId)

namespace athanor {

struct CuptiTable {
#define ATHANOR_MEMBER(name) decltype(&::name) name = nullptr;  // NOLINT(bugprone-macro-parentheses)
  ATHANOR_CUPTI_FUNCTIONS(ATHANOR_MEMBER)
#undef ATHANOR_MEMBER
};

template <class Table, class Visit>
requires std::is_same_v<std::remove_const_t<Table>, CuptiTable>
void for_each_function(Table& table, Visit&& visit) {
#define ATHANOR_VISIT(name) visit(#name, table.name);
  ATHANOR_CUPTI_FUNCTIONS(ATHANOR_VISIT)
#undef ATHANOR_VISIT
}

}  // namespace athanor
