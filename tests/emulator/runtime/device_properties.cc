// What the simulated GPUs say about themselves: those fields and attributes that the program and its tests read.
#include <cstdio>
#include <map>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
std::map<int, int64_t> attributes_of(const GpuModel& gpu) {
  return {
      {cudaDevAttrMultiProcessorCount, gpu.multiprocessors},
      {cudaDevAttrMemoryClockRate, gpu.memory_clock_khz},
      {cudaDevAttrGlobalMemoryBusWidth, gpu.memory_bus_bits},
      {cudaDevAttrL2CacheSize, int64_t(gpu.l2_bytes)},
      {cudaDevAttrComputeCapabilityMajor, gpu.major},
      {cudaDevAttrComputeCapabilityMinor, gpu.minor},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, int64_t(gpu.shared_per_multiprocessor)},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, int64_t(gpu.shared_per_block_optin)},
  };
}

void fill(cudaDeviceProp& prop, const GpuModel& gpu, int device) {
  prop = {};
  snprintf(prop.name, sizeof prop.name, "%s", gpu.name.c_str());
  prop.uuid.bytes[0] = char(0xe0);  // no real GPU's: emulated device n
  prop.uuid.bytes[15] = char(device);
  prop.totalGlobalMem = gpu.memory_bytes;
  prop.major = gpu.major;
  prop.minor = gpu.minor;
  prop.multiProcessorCount = gpu.multiprocessors;
}
}  // namespace
}  // namespace emu

extern "C" {
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  return emu::api("cudaGetDeviceProperties", emu::kEvenIfBroken, [&](emu::Runtime& rt) {
    if (prop == nullptr) return cudaErrorInvalidValue;
    if (cudaError_t error = emu::check_device(device); error != cudaSuccess) return error;
    emu::fill(*prop, rt.devices[size_t(device)].model, device);
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return emu::api("cudaDeviceGetAttribute", emu::kEvenIfBroken, [&](emu::Runtime& rt) {
    if (value == nullptr) return cudaErrorInvalidValue;
    if (cudaError_t error = emu::check_device(device); error != cudaSuccess) return error;
    const auto attributes = emu::attributes_of(rt.devices[size_t(device)].model);
    auto found = attributes.find(attribute);
    if (found != attributes.end()) return *value = int(found->second), cudaSuccess;
    std::string name = "cudaDeviceGetAttribute(" + std::to_string(int(attribute)) + ")";
    return emu::not_emulated(name.c_str(), "the attribute is not in device_properties.cc; add its documented value");
  });
}
}
