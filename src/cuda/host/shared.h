// Shared memory on the host: the two macros of cuda/launch.h. Each static array has a key; its object is created per
// block on first use. Objects are separate, so that overruns are detected.
#pragma once
#include <cstddef>
namespace emu {

void* static_shared(const void* key, size_t size, size_t align);
unsigned char* dynamic_shared();
template <class T>
T& shared_object(const void* key) {
  return *static_cast<T*>(static_shared(key, sizeof(T), alignof(T) < 16 ? 16 : alignof(T)));
}
}  // namespace emu

#define SHARED(type, name, ...) \
  static char name##_key_;      \
  auto& name = ::emu::shared_object<type __VA_ARGS__>(&name##_key_)
#define DYN_SMEM(name) unsigned char* const name = ::emu::dynamic_shared()
