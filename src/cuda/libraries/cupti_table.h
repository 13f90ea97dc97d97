// The functions of CUPTI that the program calls: activity records, external correlation ids, callbacks for graph nodes;
// see function_table.h.
#pragma once
#include <cupti.h>

#include "cuda/libraries/function_table.h"

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

ATHANOR_FUNCTION_TABLE(CuptiTable, ATHANOR_CUPTI_FUNCTIONS)

}  // namespace athanor
