// What instrumented kernels call: g++ -fsanitize=thread,alignment,bounds without the sanitizers' own libraries. Every
// plain load and store comes through here. Only in check builds.
#include <sys/types.h>

#include "emulator/device/state.h"
#ifdef EMU_CHECK
namespace {
const char* base_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}
struct Location {
  const char* file;
  uint32_t line, column;
};
struct TypeName {
  uint16_t kind, info;
  char name[1];
};
struct MisalignedAccess {
  Location location;
  TypeName* type;
  uint8_t log_align, kind;
};
struct IndexOutOfBounds {
  Location location;
  TypeName *array, *index;
};
}  // namespace

#define ACCESS(n)                                                                                        \
  void __tsan_read##n(void* p) { emu::note(p, n, emu::kRead, __builtin_return_address(0)); }             \
  void __tsan_write##n(void* p) { emu::note(p, n, emu::kWrite, __builtin_return_address(0)); }           \
  void __tsan_unaligned_read##n(void* p) { emu::note(p, n, emu::kRead, __builtin_return_address(0)); }   \
  void __tsan_unaligned_write##n(void* p) { emu::note(p, n, emu::kWrite, __builtin_return_address(0)); } \
  void __tsan_volatile_read##n(void* p) { emu::note(p, n, emu::kRead, __builtin_return_address(0)); }    \
  void __tsan_volatile_write##n(void* p) { emu::note(p, n, emu::kWrite, __builtin_return_address(0)); }

extern "C" {
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void* p, size_t n) { emu::note(p, n, emu::kRead, __builtin_return_address(0)); }
void __tsan_write_range(void* p, size_t n) { emu::note(p, n, emu::kWrite, __builtin_return_address(0)); }
// Called by instrumented host code that polls memory which kernels write; atomics of kernels have functions of their
// own.
uint64_t __tsan_atomic64_load(const volatile uint64_t* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

void __ubsan_handle_type_mismatch_v1(MisalignedAccess* d, uintptr_t p) {
  if (!emu::running()) return;
  emu::fail(emu::Fault::kMisaligned, "%s access at %#zx needs %u-byte alignment at %s:%u", d->type->name, size_t(p),
            1u << d->log_align, base_name(d->location.file), d->location.line);
}
void __ubsan_handle_out_of_bounds(IndexOutOfBounds* d, uintptr_t i) {
  if (!emu::running()) return;
  emu::fail(emu::Fault::kBounds, "index %zd outside array %s at %s:%u", ssize_t(i), d->array->name,
            base_name(d->location.file), d->location.line);
}
}
#endif
