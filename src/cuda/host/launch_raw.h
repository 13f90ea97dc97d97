// A kernel launch as the host side of the emulator sees it; cuda/launch.h makes one from its typed arguments.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
namespace emu {

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic shared memory
  cudaStream_t stream = nullptr;
  unsigned cluster = 1;       // blocks along x that share a cluster
  bool programmatic = false;  // may start before its predecessor in the stream ends (griddepcontrol)
};

// Calls `kernel`, a function pointer without its type, with the arguments stored at `parameters`.
using Trampoline = void (*)(void* kernel, void* parameters);

struct KernelCall {
  void* kernel;
  Trampoline trampoline;
  const void* parameters;
  size_t parameter_bytes;
};

// Checks the launch against the current device and queues it; defined by the runtime half.
cudaError_t launch_raw(const KernelCall& call, const LaunchShape& shape);
}  // namespace emu
