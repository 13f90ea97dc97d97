// Reports of memory accesses to the emulator, and accesses of a given width. In a check build, plain loads and stores
// are reported by the compiler's -fsanitize=thread callbacks, which the emulator implements (device/compiler_hooks.cc).
#pragma once
#include <cstddef>
#include <cstring>

#include "cuda/host/qualifiers.h"
namespace emu {

enum Access { kRead = 0, kWrite = 1, kAtomic = 2, kAsyncProxy = 4 };  // bits
void note(const void* address, size_t bytes, int access, const void* caller = nullptr);
void check_aligned(const void* address, size_t bytes, const char* what, const void* caller = nullptr);
void count_access(const void* address, size_t bytes, const void* caller);  // counts an access for KernelCounters

template <class T>
EMU_UNINSTRUMENTED T load(const void* address, const char* what) {
  const void* caller = __builtin_return_address(0);
  check_aligned(address, sizeof(T), what, caller);
  note(address, sizeof(T), kRead, caller);
  T value;
  memcpy(&value, address, sizeof value);
  return value;
}
template <class T>
EMU_UNINSTRUMENTED void store(void* address, T value, const char* what) {
  const void* caller = __builtin_return_address(0);
  check_aligned(address, sizeof(T), what, caller);
  note(address, sizeof(T), kWrite, caller);
  memcpy(address, &value, sizeof value);
}
}  // namespace emu
