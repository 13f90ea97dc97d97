// What a fake library needs of the machine it computes on: streams to queue work on, devices to describe, memory. A
// plain struct of functions: emulated_machine() is the emulated GPU, SimpleMachine (simple_machine.h) a few lines that
// make the fakes usable without it.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>

#include "../runtime/library.h"

namespace emu::fakes {

struct MachineDevice {
  int major = 9, minor = 0;  // compute capability
  int multiprocessors = 132;
  int code_sum_bits = 24;  // kept of sums of FP8 numbers and of their addends; 14 on Hopper
  int capability() const { return major * 10 + minor; }
};

struct Machine {
  std::function<cudaError_t(cudaStream_t, LibraryOperation)> enqueue;
  std::function<void()> wake;                  // some LibraryOperation::ready may have become true
  std::function<bool(cudaStream_t)> progress;  // lets queued work go on, as a GPU does by itself; true: all is done
  std::function<bool(cudaStream_t)> is_capturing;
  std::function<int()> current_device;
  std::function<int(cudaStream_t)> device_of_stream;  // -1: not a stream
  std::function<MachineDevice(int)> describe;
  std::function<bool(const char* function, int* code)> planned_failure;
  std::function<void*(size_t)> allocate;  // device memory; nullptr: none left
  std::function<void(void*)> release;
  std::function<void(Observer)> observe;  // {}: nobody listens any more
  std::function<double()> microseconds;   // on the virtual clock
};

// The emulated GPU: its streams, its simulated devices, its planned failures.
Machine emulated_machine();

}  // namespace emu::fakes
