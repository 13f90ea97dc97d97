// Functions of later versions of glibc that the C++ run-time and its headers call. Only a program that is linked with
// an older C library (ATHANOR_LIBC in CMakeLists.txt) has this file: it then starts with glibc 2.28 and later.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

// Hidden, or references to what libc has would find these.
#define OURS [[gnu::visibility("hidden")]]

extern "C" {

// 2.32: whether there is but one thread. Never: reference counts are always atomic.
OURS char __libc_single_threaded = 0;

// 2.36, for std::random_device.
OURS uint32_t arc4random() noexcept {
  uint32_t value = 0;
  if (getentropy(&value, sizeof value) != 0) std::abort();
  return value;
}

// 2.30, for std::condition_variable: waits for a time of any clock, by the one that conditions know.
OURS int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                const timespec* until) {
  constexpr int64_t kSecond = 1'000'000'000;
  timespec now{}, real{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  const int64_t left = (until->tv_sec - now.tv_sec) * kSecond + until->tv_nsec - now.tv_nsec;
  const int64_t nanoseconds = real.tv_nsec + std::max<int64_t>(left, 0);
  const timespec then{real.tv_sec + nanoseconds / kSecond, nanoseconds % kSecond};
  return pthread_cond_timedwait(condition, mutex, &then);
}

// 2.35, for exceptions: finds the loaded object that holds an address, and its unwind information. 0: there is one.
OURS int _dl_find_object(void* address, dl_find_object* found) noexcept {
  struct Search {
    uintptr_t address;
    dl_find_object* found;
  } search{reinterpret_cast<uintptr_t>(address), found};
  const auto look = [](dl_phdr_info* object, size_t, void* data) {
    const Search& s = *static_cast<Search*>(data);
    const ElfW(Phdr)* unwind = nullptr;
    bool holds = false;
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& part = object->dlpi_phdr[i];
      const uintptr_t begin = object->dlpi_addr + part.p_vaddr;
      if (part.p_type == PT_GNU_EH_FRAME) unwind = &part;
      if (part.p_type != PT_LOAD || s.address - begin >= part.p_memsz) continue;
      holds = true;
      // NOLINTBEGIN(performance-no-int-to-ptr): the kernel tells addresses as numbers
      s.found->dlfo_map_start = reinterpret_cast<void*>(begin);
      s.found->dlfo_map_end = reinterpret_cast<void*>(begin + part.p_memsz);
    }
    if (!holds || !unwind) return 0;
    s.found->dlfo_flags = 0;
    s.found->dlfo_link_map = nullptr;
    s.found->dlfo_eh_frame = reinterpret_cast<void*>(object->dlpi_addr + unwind->p_vaddr);
    // NOLINTEND(performance-no-int-to-ptr)
    return 1;
  };
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}

// 2.29: the same functions, but for errno. The versions before are as old as the architecture.
#ifdef __x86_64__
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif
#define OLDER(name, parameters, arguments)              \
  double older_##name parameters;                       \
  __asm__(".symver older_" #name "," #name "@" OLDEST); \
  OURS double our_##name parameters __asm__(#name);     \
  double our_##name parameters { return older_##name arguments; }
OLDER(exp, (double x), (x))
OLDER(exp2, (double x), (x))
OLDER(log, (double x), (x))
OLDER(log2, (double x), (x))
OLDER(pow, (double x, double y), (x, y))
}
