// Switching between fibers: saves the callee-saved registers on the old stack and returns on the new one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
namespace emu {

#if defined(__x86_64__)
extern "C" void emu_switch_stack(void** save, void* to);  // scheduler.cc
inline void* make_stack(uint8_t* top, size_t, void (*entry)()) {
  auto** sp = reinterpret_cast<void**>(top - reinterpret_cast<uintptr_t>(top) % 16);
  *--sp = nullptr;  // entry's return address: it never returns
  *--sp = reinterpret_cast<void*>(entry);
  sp -= 6;
  memset(sp, 0, 6 * sizeof *sp);
  return sp;
}
#else  // portable and ten times slower
inline void emu_switch_stack(void** save, void* to) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, static_cast<ucontext_t*>(to));
}
inline void* make_stack(uint8_t* top, size_t bytes, void (*entry)()) {
  auto* context = reinterpret_cast<ucontext_t*>(top - sizeof(ucontext_t) - 64);
  getcontext(context);
  context->uc_stack.ss_sp = top - bytes;
  context->uc_stack.ss_size = bytes - sizeof(ucontext_t) - 128;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  return context;
}
#endif
}  // namespace emu
