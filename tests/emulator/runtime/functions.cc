// Attributes of kernels, and occupancy from a model of the simulated GPU: threads, blocks and shared memory, and
// registers where a test declared them (the compiler of the host cannot know what nvcc would use).
#include <algorithm>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
constexpr size_t kReservedPerBlock = 1024;  // per block, compute capability 8.0 and later

cudaError_t set_attribute(Kernel& kernel, cudaFuncAttribute attribute, int value) {
  const GpuModel& gpu = runtime().devices[size_t(current_device())].model;
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize: {
      const int limit = int(gpu.shared_per_block_optin - kernel.static_shared);
      if (value < 0 || value > limit) {
        return refuse(cudaErrorInvalidValue, kernel.name + ": " + std::to_string(value) + " bytes of dynamic shared " +
                                                 "memory, a block of " + gpu.name + " can have " +
                                                 std::to_string(limit));
      }
      kernel.max_dynamic_shared = value;
      kernel.asked_for_shared = true;
      return cudaSuccess;
    }
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      if (value < -1 || value > 100)
        return refuse(cudaErrorInvalidValue, kernel.name + ": carveout is -1 to 100 percent");
      kernel.carveout = value;
      return cudaSuccess;
    case cudaFuncAttributeNonPortableClusterSizeAllowed:
      if (gpu.major < 9) return refuse(cudaErrorNotSupported, kernel.name + ": " + gpu.name + " has no clusters");
      kernel.non_portable_cluster = value != 0;
      return cudaSuccess;
    default:
      return not_emulated(("cudaFuncSetAttribute(" + std::to_string(int(attribute)) + ")").c_str(),
                          "dynamic shared memory, carveout and non-portable clusters are");
  }
}

void fill(cudaFuncAttributes& out, const Kernel& kernel) {
  const GpuModel& gpu = runtime().devices[size_t(current_device())].model;
  out = {};
  out.sharedSizeBytes = kernel.static_shared;
  out.maxThreadsPerBlock = kernel.registers == 0 ? 1024 : std::min(1024, 65536 / kernel.registers / 32 * 32);
  out.numRegs = kernel.registers;
  out.ptxVersion = out.binaryVersion = gpu.major * 10 + gpu.minor;
  out.maxDynamicSharedSizeBytes = kernel.max_dynamic_shared;
  out.preferredShmemCarveout = kernel.carveout;
  out.nonPortableClusterSizeAllowed = kernel.non_portable_cluster;
}

template <class Body>
cudaError_t with_kernel(const char* name, const void* function, Body&& body) {
  return api(name, kOrdinary, [&](Runtime& rt) {
    if (function == nullptr) return refuse(cudaErrorInvalidDeviceFunction, std::string(name) + ": no kernel given");
    if (cudaError_t error = check_device(current_device()); error != cudaSuccess) return error;
    return body(known_kernel(function), rt.devices[size_t(current_device())].model);
  });
}

}  // namespace

int blocks_per_multiprocessor(const GpuModel& gpu, const Kernel& kernel, int block_threads, size_t dynamic_shared) {
  if (block_threads <= 0 || block_threads > 1024 || dynamic_shared > size_t(kernel.max_dynamic_shared)) return 0;
  const int threads = (block_threads + 31) / 32 * 32;
  const size_t shared = dynamic_shared + kernel.static_shared + kReservedPerBlock;
  int blocks = std::min(gpu.threads_per_multiprocessor / threads, gpu.blocks_per_multiprocessor);
  blocks = std::min(blocks, int(gpu.shared_per_multiprocessor / shared));
  if (kernel.registers != 0) {
    const int per_warp = (kernel.registers * 32 + 255) / 256 * 256;  // allocation unit: 256 registers a warp
    blocks = std::min(blocks, 65536 / (per_warp * (threads / 32)));
  }
  return blocks;
}

}  // namespace emu

using emu::GpuModel;
using emu::Kernel;
using emu::with_kernel;

extern "C" {
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return with_kernel("cudaFuncSetAttribute", function,
                     [&](Kernel& kernel, const GpuModel&) { return emu::set_attribute(kernel, attribute, value); });
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return with_kernel("cudaFuncGetAttributes", function, [&](Kernel& kernel, const GpuModel&) {
    if (attributes == nullptr) return cudaErrorInvalidValue;
    emu::fill(*attributes, kernel);
    return cudaSuccess;
  });
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int block_threads,
                                                          size_t dynamic_shared) {
  return with_kernel("cudaOccupancyMaxActiveBlocksPerMultiprocessor", function,
                     [&](Kernel& kernel, const GpuModel& gpu) {
                       if (blocks == nullptr || block_threads <= 0) return cudaErrorInvalidValue;
                       *blocks = emu::blocks_per_multiprocessor(gpu, kernel, block_threads, dynamic_shared);
                       return cudaSuccess;
                     });
}
cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* function, int blocks,
                                                      int block_threads) {
  return with_kernel("cudaOccupancyAvailableDynamicSMemPerBlock", function, [&](Kernel& kernel, const GpuModel& gpu) {
    if (bytes == nullptr || blocks <= 0 || block_threads <= 0) return cudaErrorInvalidValue;
    const size_t each = gpu.shared_per_multiprocessor / size_t(blocks);
    const size_t fixed = kernel.static_shared + emu::kReservedPerBlock;
    *bytes = std::min(each < fixed ? 0 : each - fixed, gpu.shared_per_block_optin - kernel.static_shared);
    return cudaSuccess;
  });
}
}
