// Marks free memory as poisoned, so that builds with the address sanitizer report reads and writes of it. A no-op in
// other builds.
#pragma once
#include <cstddef>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ATHANOR_POISONS
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define ATHANOR_POISONS
#endif
#ifdef ATHANOR_POISONS
#include <sanitizer/asan_interface.h>
#endif

namespace athanor {

inline void poison([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#ifdef ATHANOR_POISONS
  ASAN_POISON_MEMORY_REGION(memory, bytes);
#endif
}
inline void unpoison([[maybe_unused]] const void* memory, [[maybe_unused]] size_t bytes) {
#ifdef ATHANOR_POISONS
  ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
#endif
}

}  // namespace athanor
