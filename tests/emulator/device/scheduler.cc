// Fibers: every CUDA thread has a stack of its own; whenever one waits, the next is drawn at random among the threads
// of the gang that can go on. Asynchronous work of the gang completes at random moments in between.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#include "emulator/device/state.h"
#include "emulator/device/switch.h"

#if defined(__x86_64__)
asm(R"(.text
.globl emu_switch_stack
.type emu_switch_stack,@function
emu_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch_stack,.-emu_switch_stack
.section .note.GNU-stack,"",@progbits
.text)");
#endif

namespace emu {
namespace {
// Stacks start at different places of the caches' sets: with all tops a power of two apart, only some eight would fit.
constexpr size_t kColours = 32, kColourBytes = 9 * 64;

// Stacks are kept: those of an OS thread that ends go to the next one that needs some.
struct SpareStacks {
  std::mutex mutex;
  std::vector<Thread*> threads;
};
SpareStacks& spare() {
  static auto* stacks = new SpareStacks;  // outlives the OS threads
  return *stacks;
}
struct StackPool {
  std::vector<Thread*> threads;
  ~StackPool() {
    const std::lock_guard lock(spare().mutex);
    spare().threads.insert(spare().threads.end(), threads.begin(), threads.end());
  }
};
Thread* spare_stack() {
  const std::lock_guard lock(spare().mutex);
  if (spare().threads.empty()) return nullptr;
  Thread* t = spare().threads.back();
  spare().threads.pop_back();
  return t;
}
thread_local StackPool pool;

void switch_to(void** save, Thread* to, Gang& gang) {
  current_thread = to;
  emu_switch_stack(save, to ? to->fiber->stack_pointer : gang.main_stack);
}

Thread* pick(Gang& gang) {  // null: nobody can go on
  for (;;) {
    if (gang.async_open && (gang.ready.empty() || gang.random.below(16) == 0)) {
      run_random_async(gang);
      continue;
    }
    if (gang.ready.empty()) return nullptr;
    const size_t k = gang.random.below(uint32_t(gang.ready.size()));
    Thread* t = gang.ready[k];
    gang.ready[k] = gang.ready.back();
    gang.ready.pop_back();
    return t;
  }
}

void thread_main() {
  {
    Block& b = block();
    const GridLaunch& launch = *b.gang->grid->launch;
    launch.trampoline(launch.kernel, b.parameters);
    finish_thread();
  }
  Gang& gang = *block().gang;
  switch_to(&fiber().stack_pointer, pick(gang), gang);
  abort();
}
}  // namespace

constinit thread_local Thread* current_thread __attribute__((tls_model("initial-exec"))) = nullptr;
__attribute__((noinline)) Thread* self() { return current_thread; }

Thread* pooled_thread(size_t index) {
  while (pool.threads.size() <= index) {
    if (Thread* kept = spare_stack()) {
      pool.threads.push_back(kept);
      continue;
    }
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
    if (stack == MAP_FAILED) {
      fprintf(stderr, "emulator: no memory for the stack of thread %zu of this launch\n", index);
      abort();
    }
    const size_t colour = pool.threads.size() % kColours * kColourBytes;
    auto* t = reinterpret_cast<Thread*>(static_cast<uint8_t*>(stack) + kStackBytes - kStackHeader - colour);
    t->fiber = new Fiber;
    pool.threads.push_back(t);
  }
  return pool.threads[index];
}

void prepare_fiber(Thread* t) {
  t->fiber->stack_pointer = make_stack(reinterpret_cast<uint8_t*>(t), kFiberStack, thread_main);
}

void enter_gang(Gang& gang) {
  if (Thread* first = pick(gang)) switch_to(&gang.main_stack, first, gang);
  current_thread = nullptr;
}

void leave_gang() {
  switch_to(&fiber().stack_pointer, nullptr, *block().gang);
  abort();
}

void park(Wait wait, const Reason& reason) {
  Fiber& f = fiber();
  Thread* me = self();
  f.waiting = wait;
  f.reason = reason;
  Gang& gang = *f.block->gang;
  Thread* next = pick(gang);
  if (next != me) switch_to(&f.stack_pointer, next, gang);
}

void wake(Thread* t) {
  t->fiber->waiting = Wait::kReady;
  t->fiber->block->gang->ready.push_back(t);
}
}  // namespace emu
