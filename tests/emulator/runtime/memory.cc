// Allocating and freeing outside streams: device memory and pinned memory.
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

cudaError_t allocate_pinned(void** out, size_t bytes, const char* name, void* caller) {
  if (out == nullptr) return refuse(cudaErrorInvalidValue, std::string(name) + ": no place for the pointer");
  *out = nullptr;
  if (cudaError_t error = check_device(current_device()); error != cudaSuccess) return error;
  if (bytes == 0) return cudaSuccess;
  *out = allocate(current_device(), bytes, MemoryKind::kPinned, name, caller);
  return *out != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
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
             [&](Runtime&) { return emu::allocate_pinned(out, bytes, "cudaMallocHost", caller); });
}
cudaError_t cudaFreeHost(void* address) {
  return api("cudaFreeHost", emu::kUnsafeInCapture,
             [&](Runtime&) { return emu::free_memory(address, emu::MemoryKind::kPinned, "cudaFreeHost"); });
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
}
