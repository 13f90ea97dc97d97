// The functions of NVML that the program calls; see function_table.h about tables.
#pragma once
#include <type_traits>

#include "cuda/libraries/nvml_api.h"

#define ATHANOR_NVML_FUNCTIONS(F)     \
  F(nvmlInit_v2)                      \
  F(nvmlShutdown)                     \
  F(nvmlErrorString)                  \
  F(nvmlDeviceGetHandleByPciBusId_v2) \
  F(nvmlDeviceGetPowerUsage)          \
  F(nvmlDeviceGetTemperature)         \
  F(nvmlDeviceGetClockInfo)           \
  F(nvmlDeviceGetCurrentClocksEventReasons)

namespace athanor {

struct NvmlTable {
#define ATHANOR_MEMBER(name) decltype(&nvml::name) name = nullptr;  // NOLINT(bugprone-macro-parentheses)
  ATHANOR_NVML_FUNCTIONS(ATHANOR_MEMBER)
#undef ATHANOR_MEMBER
};

template <class Table, class Visit>
requires std::is_same_v<std::remove_const_t<Table>, NvmlTable>
void for_each_function(Table& table, Visit&& visit) {
#define ATHANOR_VISIT(name) visit(#name, table.name);
  ATHANOR_NVML_FUNCTIONS(ATHANOR_VISIT)
#undef ATHANOR_VISIT
}

}  // namespace athanor
