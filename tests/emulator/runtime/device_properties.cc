// What the simulated GPUs say about themselves: cudaDeviceProp and cudaDeviceAttr from one model.
#include <cstdio>
#include <map>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
constexpr int kWarp = 32;
constexpr int kThreadsPerBlock = 1024;
constexpr int kRegisters = 65536;      // per multiprocessor and per block, all these architectures
constexpr int kReservedShared = 1024;  // per block, compute capability 8.0 and later

// What all simulated GPUs have in common.
const std::map<int, int64_t> kCommonAttributes{
    {cudaDevAttrMaxThreadsPerBlock, kThreadsPerBlock},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 2147483647},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
    {cudaDevAttrTotalConstantMemory, 65536},
    {cudaDevAttrWarpSize, kWarp},
    {cudaDevAttrMaxRegistersPerBlock, kRegisters},
    {cudaDevAttrGpuOverlap, 1},
    {cudaDevAttrKernelExecTimeout, 0},
    {cudaDevAttrIntegrated, 0},
    {cudaDevAttrCanMapHostMemory, 1},
    {cudaDevAttrComputeMode, cudaComputeModeDefault},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrPciDeviceId, 0},
    {cudaDevAttrPciDomainId, 0},
    {cudaDevAttrTccDriver, 0},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrStreamPrioritiesSupported, 1},
    {cudaDevAttrGlobalL1CacheSupported, 1},
    {cudaDevAttrLocalL1CacheSupported, 1},
    {cudaDevAttrMaxRegistersPerMultiprocessor, kRegisters},
    {cudaDevAttrManagedMemory, 0},  // not emulated, so a program that asks does without
    {cudaDevAttrPageableMemoryAccess, 0},
    {cudaDevAttrConcurrentManagedAccess, 0},
    {cudaDevAttrComputePreemptionSupported, 1},
    {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
    {cudaDevAttrCooperativeLaunch, 1},
    {cudaDevAttrHostRegisterSupported, 1},
    {cudaDevAttrMaxPersistingL2CacheSize, 0},
    {cudaDevAttrMaxAccessPolicyWindowSize, 0},
    {cudaDevAttrReservedSharedMemoryPerBlock, kReservedShared},
    {cudaDevAttrMemoryPoolsSupported, 0},
    {cudaDevAttrGPUDirectRDMASupported, 0},
    {cudaDevAttrIpcEventSupport, 0},
};

std::map<int, int64_t> model_attributes(const GpuModel& gpu, int device) {
  const bool hopper = gpu.major >= 9;
  return {
      {cudaDevAttrClockRate, gpu.clock_khz},
      {cudaDevAttrMultiProcessorCount, gpu.multiprocessors},
      {cudaDevAttrEccEnabled, gpu.error_correction},
      {cudaDevAttrPciBusId, 0x10 + device},
      {cudaDevAttrMemoryClockRate, gpu.memory_clock_khz},
      {cudaDevAttrGlobalMemoryBusWidth, gpu.memory_bus_bits},
      {cudaDevAttrL2CacheSize, int64_t(gpu.l2_bytes)},
      {cudaDevAttrMaxThreadsPerMultiProcessor, gpu.threads_per_multiprocessor},
      {cudaDevAttrAsyncEngineCount, gpu.copy_engines},
      {cudaDevAttrComputeCapabilityMajor, gpu.major},
      {cudaDevAttrComputeCapabilityMinor, gpu.minor},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, int64_t(gpu.shared_per_multiprocessor)},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, int64_t(gpu.shared_per_block_optin)},
      {cudaDevAttrMaxBlocksPerMultiprocessor, gpu.blocks_per_multiprocessor},
      {cudaDevAttrClusterLaunch, hopper},
      {cudaDevAttrMemSyncDomainCount, hopper ? 4 : 1},
  };
}

void fill_limits(cudaDeviceProp& prop, const GpuModel& gpu) {
  prop.sharedMemPerBlock = 49152;
  prop.regsPerBlock = prop.regsPerMultiprocessor = kRegisters;
  prop.warpSize = kWarp;
  prop.maxThreadsPerBlock = kThreadsPerBlock;
  prop.maxThreadsDim[0] = prop.maxThreadsDim[1] = 1024;
  prop.maxThreadsDim[2] = 64;
  prop.maxGridSize[0] = 2147483647;
  prop.maxGridSize[1] = prop.maxGridSize[2] = 65535;
  prop.totalConstMem = 65536;
  prop.maxThreadsPerMultiProcessor = gpu.threads_per_multiprocessor;
  prop.maxBlocksPerMultiProcessor = gpu.blocks_per_multiprocessor;
  prop.sharedMemPerMultiprocessor = gpu.shared_per_multiprocessor;
  prop.sharedMemPerBlockOptin = gpu.shared_per_block_optin;
  prop.reservedSharedMemPerBlock = kReservedShared;
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
  fill_limits(prop, gpu);
  prop.canMapHostMemory = prop.concurrentKernels = prop.unifiedAddressing = 1;
  prop.ECCEnabled = gpu.error_correction;
  prop.pciBusID = 0x10 + device;
  prop.asyncEngineCount = gpu.copy_engines;
  prop.memoryBusWidth = gpu.memory_bus_bits;
  prop.l2CacheSize = int(gpu.l2_bytes);
  prop.streamPrioritiesSupported = prop.globalL1CacheSupported = prop.localL1CacheSupported = 1;
  prop.computePreemptionSupported = prop.canUseHostPointerForRegisteredMem = prop.cooperativeLaunch = 1;
  prop.hostRegisterSupported = 1;
  prop.clusterLaunch = gpu.major >= 9;
}
}  // namespace

bool device_attribute(int device, int attribute, int* value) {
  const auto of_model = model_attributes(runtime().devices[size_t(device)].model, device);
  for (const auto* attributes : {&of_model, &kCommonAttributes}) {
    auto found = attributes->find(attribute);
    if (found == attributes->end()) continue;
    *value = int(found->second);
    return true;
  }
  return false;
}
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
  return emu::api("cudaDeviceGetAttribute", emu::kEvenIfBroken, [&](emu::Runtime&) {
    if (value == nullptr) return cudaErrorInvalidValue;
    if (cudaError_t error = emu::check_device(device); error != cudaSuccess) return error;
    if (emu::device_attribute(device, attribute, value)) return cudaSuccess;
    std::string name = "cudaDeviceGetAttribute(" + std::to_string(int(attribute)) + ")";
    return emu::not_emulated(name.c_str(), "the attribute is not in device_properties.cc; add its documented value");
  });
}
}
