// Allocating and freeing outside streams: device memory, pinned memory, registered memory, and what a pointer is.
#include <algorithm>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
cudaError_t allocate_device(void** out, size_t bytes, const char* name, void* caller) {
  if (out == nullptr) return refuse(cudaErrorInvalidValue, std::string(name) + ": no place for the pointer");
  *out = nullptr;
  int device = current_device();
  if (cudaError_t error = check_device(device); error != cudaSuccess) return error;
  if (bytes == 0) return cudaSuccess;  // a null pointer, as on a GPU
  *out = allocate(device, bytes, MemoryKind::kDevice, name, caller);
  return *out != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t allocate_pinned(void** out, size_t bytes, unsigned flags, const char* name, void* caller) {
  if (out == nullptr) return refuse(cudaErrorInvalidValue, std::string(name) + ": no place for the pointer");
  *out = nullptr;
  if (cudaError_t error = check_device(current_device()); error != cudaSuccess) return error;
  constexpr unsigned kKnown = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
  if ((flags & ~kKnown) != 0) {
    return refuse(cudaErrorInvalidValue, std::string(name) + ": unknown flags " + std::to_string(flags));
  }
  if (bytes == 0) return cudaSuccess;
  uint8_t* begin = allocate(current_device(), bytes, MemoryKind::kPinned, name, caller);
  if (begin == nullptr) return cudaErrorMemoryAllocation;
  runtime().allocations[begin].flags = flags;
  *out = begin;
  return cudaSuccess;
}

// Waits for the devices, as cudaFree does, so that nothing queued still uses the memory.
void wait_for_all_devices() {
  for (int d = 0; d < int(runtime().devices.size()); ++d) host_waits_for_device(d);
}

cudaError_t free_memory(void* address, MemoryKind kind, const char* name) {
  if (address == nullptr) return cudaSuccess;
  auto& all = runtime().allocations;
  auto found = all.find(static_cast<uint8_t*>(address));
  if (found == all.end()) {
    return refuse(cudaErrorInvalidValue,
                  std::string(name) + ": not the start of an allocation (freed twice?): " + describe_address(address));
  }
  if (found->second.kind != kind) {
    return refuse(cudaErrorInvalidValue, std::string(name) + ": the memory came from " + found->second.api);
  }
  wait_for_all_devices();
  if (cudaError_t error = asynchronous(); error != cudaSuccess) return error;
  return release(address, name);
}

cudaError_t register_host(void* begin, size_t bytes, unsigned flags, void* caller) {
  if (begin == nullptr || bytes == 0) return refuse(cudaErrorInvalidValue, "cudaHostRegister: no memory given");
  if (cudaError_t error = check_device(current_device()); error != cudaSuccess) return error;
  if ((flags & ~unsigned(cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly)) != 0) {
    return refuse(cudaErrorInvalidValue, "cudaHostRegister: unknown flags " + std::to_string(flags));
  }
  auto* first = static_cast<uint8_t*>(begin);
  const bool held = find_allocation(first) != nullptr || find_allocation(first + bytes - 1) != nullptr;
  if (held || in_arena(begin)) {
    return refuse(cudaErrorHostMemoryAlreadyRegistered, "cudaHostRegister: " + describe_address(begin));
  }
  runtime().allocations[first] = {bytes, MemoryKind::kRegistered, current_device(), flags, "cudaHostRegister", caller};
  return cudaSuccess;
}

cudaError_t unregister_host(void* begin) {
  auto& all = runtime().allocations;
  auto found = all.find(static_cast<uint8_t*>(begin));
  if (found == all.end() || found->second.kind != MemoryKind::kRegistered) {
    return refuse(cudaErrorHostMemoryNotRegistered, "cudaHostUnregister: " + describe_address(begin));
  }
  wait_for_all_devices();
  all.erase(found);
  return asynchronous();
}

void fill(cudaPointerAttributes& out, const void* address) {
  out = {};
  out.device = -1;
  const Allocation* held = find_allocation(address);
  if (held == nullptr) {
    out.type = cudaMemoryTypeUnregistered;
    out.device = -2;  // cudaInvalidDeviceId
    return;
  }
  auto* pointer = const_cast<void*>(address);
  out.type = held->kind == MemoryKind::kDevice ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  out.device = held->device;
  out.devicePointer = held->kind == MemoryKind::kRegistered ? nullptr : pointer;
  out.hostPointer = held->kind == MemoryKind::kDevice ? nullptr : pointer;
}
}  // namespace
}  // namespace emu

using emu::api;
using emu::refuse;
using emu::Runtime;

extern "C" {
cudaError_t cudaMalloc(void** out, size_t bytes) {
  void* caller = EMU_CALLER;
  return api("cudaMalloc", emu::kUnsafeInCapture,
             [&](Runtime&) { return emu::allocate_device(out, bytes, "cudaMalloc", caller); });
}
cudaError_t cudaFree(void* address) {
  return api("cudaFree", emu::kUnsafeInCapture,
             [&](Runtime&) { return emu::free_memory(address, emu::MemoryKind::kDevice, "cudaFree"); });
}
cudaError_t cudaMallocHost(void** out, size_t bytes) {
  void* caller = EMU_CALLER;
  return api("cudaMallocHost", emu::kUnsafeInCapture,
             [&](Runtime&) { return emu::allocate_pinned(out, bytes, 0, "cudaMallocHost", caller); });
}
cudaError_t cudaFreeHost(void* address) {
  return api("cudaFreeHost", emu::kUnsafeInCapture,
             [&](Runtime&) { return emu::free_memory(address, emu::MemoryKind::kPinned, "cudaFreeHost"); });
}
cudaError_t cudaHostRegister(void* begin, size_t bytes, unsigned flags) {
  void* caller = EMU_CALLER;
  return api("cudaHostRegister", emu::kUnsafeInCapture,
             [&](Runtime&) { return emu::register_host(begin, bytes, flags, caller); });
}
cudaError_t cudaHostUnregister(void* begin) {
  return api("cudaHostUnregister", emu::kUnsafeInCapture, [&](Runtime&) { return emu::unregister_host(begin); });
}
cudaError_t cudaHostGetDevicePointer(void** out, void* address, unsigned) {
  return api("cudaHostGetDevicePointer", emu::kOrdinary, [&](Runtime&) {
    if (out == nullptr) return cudaErrorInvalidValue;
    if (emu::is_pinned(address) && emu::find_allocation(address) != nullptr) {
      *out = address;
      return cudaSuccess;
    }
    if (emu::find_allocation(address) != nullptr && !emu::in_arena(address)) {
      return emu::not_emulated("cudaHostGetDevicePointer of registered memory",
                               "kernels can use memory of cudaMallocHost, and copies can use both");
    }
    return refuse(cudaErrorInvalidValue, "cudaHostGetDevicePointer: not pinned: " + emu::describe_address(address));
  });
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return api("cudaMemGetInfo", emu::kOrdinary, [&](Runtime& rt) {
    if (free_bytes == nullptr || total_bytes == nullptr) return cudaErrorInvalidValue;
    if (cudaError_t error = emu::check_device(emu::current_device()); error != cudaSuccess) return error;
    const emu::Device& device = rt.devices[size_t(emu::current_device())];
    *total_bytes = device.memory_limit;
    *free_bytes = device.memory_limit - std::min(device.memory_limit, device.memory_used);
    return cudaSuccess;
  });
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return api("cudaPointerGetAttributes", emu::kOrdinary, [&](Runtime&) {
    if (attributes == nullptr) return cudaErrorInvalidValue;
    emu::fill(*attributes, address);
    return cudaSuccess;
  });
}
}
