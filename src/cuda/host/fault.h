// Kinds of faults in a kernel run on the host.
#pragma once
namespace emu {

enum class Fault {
  kNone,
  kRace,
  kBounds,
  kMisaligned,
  kUninitialized,
  kInFlight,  // access to memory of an unfinished asynchronous copy
  kDeadlock,
  kBarrier,    // threads of a block are at different barriers, or some never arrive
  kWarp,       // a warp collective with a wrong mask
  kMbarrier,   // wrong use of an mbarrier
  kProxy,      // a fence between the generic and the async proxy is missing
  kRefused,    // not emulated, or not available on the simulated GPU: the text names it
  kConfigure,  // impossible launch or instruction arguments
  kHost,       // host code misuses the runtime: touches device memory, leaks, frees twice
};
}  // namespace emu
