// What a test says to the emulated GPU and asks of it: schedules, faults, counted accesses.
// Nothing here exists on a real GPU, so a test that is also built by nvcc uses it only when __CUDACC__ is not defined.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "cuda/host/fault.h"
namespace emu {

const char* fault_name(Fault fault);

struct Report {
  Fault fault = Fault::kNone;
  std::string text;  // kernel, block, thread, and in a check build file and line
};
Report take_report();  // the first fault since the last call; also clears sticky errors and drops queued work

// Chooses the order of threads, blocks, streams and asynchronous completions from now on.
void seed(uint64_t value);
// OS threads that share the blocks of one launch.
void set_threads(int count);

// What a kernel's accesses would cost on a GPU, by kernel name, summed over its launches. Check builds count all
// accesses, fast builds those through cuda/access.h and cuda/ptx/ptx.h.
void count_accesses(bool on);  // off at first: it costs time
struct KernelCounters {
  uint64_t global_requests = 0;     // warp-wide accesses to global memory
  uint64_t global_sectors = 0;      // 32-byte sectors that they touch
  uint64_t global_sectors_min = 0;  // the fewest that could hold the bytes asked for
  uint64_t shared_requests = 0;     // warp-wide accesses to shared memory
  uint64_t shared_passes = 0;       // passes over the 32 banks
  uint64_t shared_passes_min = 0;   // passes without conflicts
};
std::map<std::string, KernelCounters> kernel_counters();
void reset_kernel_counters();
}  // namespace emu
