// A kernel launch as the host side of the emulator sees it; cuda/launch.h makes one from its typed arguments.
#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <tuple>
namespace emu {

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic shared memory
  cudaStream_t stream = nullptr;
  unsigned cluster = 1;       // blocks along x that share a cluster
  bool programmatic = false;  // may start before its predecessor in the stream ends (griddepcontrol)
  bool cooperative = false;   // all blocks are resident
};

// Calls `kernel`, a function pointer without its type, with the arguments stored at `parameters`.
using Trampoline = void (*)(void* kernel, void* parameters);

// Offset and size of a parameter in the bytes that the trampoline reads.
struct ParameterSlot {
  size_t offset, bytes;
};

struct KernelCall {
  void* kernel;
  Trampoline trampoline;
  const void* parameters;
  size_t parameter_bytes;
  const ParameterSlot* slots = nullptr;  // one per parameter; graph kernel nodes need them to update arguments
  size_t slot_count = 0;
};

// The slots of a std::tuple<P...> that holds a kernel's arguments.
template <class... P>
std::array<ParameterSlot, sizeof...(P)> parameter_slots(const std::tuple<P...>& arguments) {
  auto slot = [&](const auto& field) {
    return ParameterSlot{size_t(reinterpret_cast<const char*>(&field) - reinterpret_cast<const char*>(&arguments)),
                         sizeof field};
  };
  return std::apply([&](const auto&... field) { return std::array<ParameterSlot, sizeof...(P)>{slot(field)...}; },
                    arguments);
}

// Registers a kernel before its first launch, for cudaLaunchKernelExC and explicit graph nodes, which pass void*.
void register_kernel(const KernelCall& kernel);  // `parameters` is not read
// Checks the launch against the current device and queues it; defined by the runtime half.
cudaError_t launch_raw(const KernelCall& call, const LaunchShape& shape);
}  // namespace emu
