// The identity of the running CUDA thread, and faults raised by it.
#pragma once
#include <cstdint>

#include "cuda/host/fault.h"
#include "cuda/host/qualifiers.h"
namespace emu {

struct Fiber;
struct Thread {  // stored at the top of its own stack
  uint3 thread_index, block_index;
  dim3 block_dim, grid_dim;
  unsigned linear, lane, warp;
  Fiber* fiber;  // the other members are private to the device part
};
Thread* self() __attribute__((const));  // constant within a fiber, so calls may be merged

// Ends the launch with a fault of the running thread.
[[noreturn]] void fail(Fault fault, const char* format, ...) __attribute__((format(printf, 2, 3)));
}  // namespace emu

#define threadIdx (::emu::self()->thread_index)
#define blockIdx (::emu::self()->block_index)
#define blockDim (::emu::self()->block_dim)
#define gridDim (::emu::self()->grid_dim)
#define warpSize 32

[[noreturn]] inline void __trap() { emu::fail(emu::Fault::kConfigure, "__trap()"); }
