// What a test says to the fake CUDA runtime and asks of it: which GPUs there are, planned failures, leaks, the order in
// which queued work runs. emulator.h has the rest: seeds, faults, statistics.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "cuda/host/launch_raw.h"
namespace emu {

// A simulated GPU. The presets are in device_models.cc; a test may change a field, say fewer multiprocessors.
struct GpuModel {
  std::string name;
  int major = 0, minor = 0;
  int multiprocessors = 0;
  size_t memory_bytes = 0;  // what cudaMemGetInfo calls total; allocations beyond it fail
  size_t l2_bytes = 0;
  int memory_clock_khz = 0, memory_bus_bits = 0;
  size_t shared_per_multiprocessor = 0, shared_per_block_optin = 0;
};
GpuModel gpu_a100();
GpuModel gpu_rtx4090();
GpuModel gpu_h100();
GpuModel gpu_h200();
GpuModel gpu_b200();

// Starts a new process, as it were: frees everything, forgets errors and plans, and has these devices from now on.
// A program that never calls it has one H200. No device at all is possible: cudaErrorNoDevice.
void simulate(const std::vector<GpuModel>& gpus);

// Less memory than the model has, for tests of running out of it.
void set_memory_limit(size_t bytes, int device = 0);

// The nth call of `api` from now on (1: the next) fails with `error`; nothing else of that call happens. A code that is
// sticky on a real GPU is sticky here.
void fail_next(const std::string& api, int nth, cudaError_t error);
void fail_next(const std::string& api, int nth, int code);  // calls of the fake libraries: their own codes

// When queued work runs. The default mixes: most of it at the latest moment, some at once, in a seeded random order.
enum class Schedule { kMixed, kLate, kAtOnce };
void set_schedule(Schedule schedule);

// How long a host thread waits for operations whose `ready` other threads must make true, before it is a deadlock.
constexpr double kWaitLimit = 60;  // seconds, unless set
void set_wait_limit(double seconds);

// Why the latest failing call failed, in words: subject, expectation, actual values. Empty if it was planned.
std::string explanation();

// What was made and never destroyed, one line each with the place of the call: memory, streams, events, graphs.
std::vector<std::string> leaks();

// From now on kernels are not run: each launch is checked against the limits of the simulated GPU as ever, and told.
// Addresses in its arguments need not be memory. {}: kernels run again.
void tell_launches(std::function<void(const std::string& kernel, const LaunchShape&)> listener);
}  // namespace emu
