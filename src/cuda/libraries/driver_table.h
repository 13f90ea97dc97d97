// The functions of the CUDA driver that the program calls besides the runtime; see cublaslt_table.h about tables.
#pragma once
#include <cuda.h>

#include <type_traits>

#define ATHANOR_DRIVER_FUNCTIONS(F) \
  F(cuInit)                         \
  F(cuDriverGetVersion)             \
  F(cuGetErrorName)                 \
  F(cuGetErrorString)               \
  F(cuTensorMapEncodeTiled)

namespace athanor {

struct DriverTable {
#define ATHANOR_MEMBER(name) decltype(&::name) name = nullptr;  // NOLINT(bugprone-macro-parentheses)
  ATHANOR_DRIVER_FUNCTIONS(ATHANOR_MEMBER)
#undef ATHANOR_MEMBER
};

template <class Table, class Visit>
requires std::is_same_v<std::remove_const_t<Table>, DriverTable>
void for_each_function(Table& table, Visit&& visit) {
#define ATHANOR_VISIT(name) visit(#name, table.name);
  ATHANOR_DRIVER_FUNCTIONS(ATHANOR_VISIT)
#undef ATHANOR_VISIT
}

}  // namespace athanor
