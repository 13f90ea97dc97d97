// ATHANOR_FUNCTION_TABLE(Table, FUNCTIONS) defines the functions of a library that the program calls as a plain struct
// of pointers with the header's prototypes. The opened library or a fake fills the struct, which is passed explicitly.
// Members have the library's names: grep finds every call. for_each_function(table, visit) calls visit("name",
// table.name) for each of them. FUNCTIONS(F) is F(name) for every function.
#pragma once
#include <type_traits>

#define ATHANOR_TABLE_MEMBER(name) decltype(&::name) name = nullptr;  // NOLINT(bugprone-macro-parentheses)
#define ATHANOR_TABLE_VISIT(name) visit(#name, table.name);
#define ATHANOR_FUNCTION_TABLE(Table, FUNCTIONS)         \
  struct Table {                                         \
    FUNCTIONS(ATHANOR_TABLE_MEMBER)                      \
  };                                                     \
  template <class T, class Visit>                        \
  requires std::is_same_v<std::remove_const_t<T>, Table> \
  void for_each_function(T& table, Visit&& visit) { FUNCTIONS(ATHANOR_TABLE_VISIT) }
