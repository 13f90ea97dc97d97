// An allocator for large tables with random access: uses huge pages if available, which avoids most TLB misses.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <new>

namespace athanor {

template <class T>
struct HugePages {
  using value_type = T;
  static constexpr size_t kPage = size_t{2} << 20;

  HugePages() = default;
  template <class U>
  HugePages(const HugePages<U>&) {}
  bool operator==(const HugePages&) const = default;

  T* allocate(size_t count) {
    const size_t bytes = bytes_of(count);
    void* memory = ::operator new(bytes, alignment(bytes));
    if (bytes >= kPage) ::madvise(memory, bytes, MADV_HUGEPAGE);  // a hint: failure is harmless
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) {
    const size_t bytes = bytes_of(count);
    ::operator delete(memory, alignment(bytes));
  }

 private:
  // Allocations of a page or more are rounded up to whole pages.
  static size_t bytes_of(size_t count) {
    const size_t bytes = count * sizeof(T);
    return bytes < kPage ? bytes : (bytes + kPage - 1) / kPage * kPage;
  }
  static std::align_val_t alignment(size_t bytes) {
    return std::align_val_t{bytes < kPage ? std::max(alignof(T), alignof(std::max_align_t)) : kPage};
  }
};

}  // namespace athanor
