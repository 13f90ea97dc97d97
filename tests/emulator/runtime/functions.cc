// Attributes of kernels, and how many of their blocks a multiprocessor of the simulated GPU holds: by threads, blocks
// and dynamic shared memory, since the compiler of the host does not know the registers that nvcc would use.
#include <algorithm>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
constexpr size_t kReservedPerBlock = 1024;  // per block, compute capability 8.0 and later

cudaError_t set_attribute(Kernel& kernel, cudaFuncAttribute attribute, int value) {
  const GpuModel& gpu = runtime().devices[size_t(current_device())].model;
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize: {
      const int limit = int(gpu.shared_per_block_optin);
      if (value < 0 || value > limit) {
        return refuse(cudaErrorInvalidValue, kernel.name + ": " + std::to_string(value) + " bytes of dynamic shared " +
                                                 "memory, a block of " + gpu.name + " can have " +
                                                 std::to_string(limit));
      }
      kernel.max_dynamic_shared = value;
      kernel.asked_for_shared = true;
      return cudaSuccess;
    }
    default:
      return not_emulated(("cudaFuncSetAttribute(" + std::to_string(int(attribute)) + ")").c_str(),
                          "dynamic shared memory is");
  }
}

void fill(cudaFuncAttributes& out, const Kernel& kernel) {
  const GpuModel& gpu = runtime().devices[size_t(current_device())].model;
  out = {};
  out.maxThreadsPerBlock = 1024;
  out.ptxVersion = out.binaryVersion = gpu.major * 10 + gpu.minor;
  out.maxDynamicSharedSizeBytes = kernel.max_dynamic_shared;
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
  const size_t shared = dynamic_shared + kReservedPerBlock;
  int blocks = std::min(gpu.threads_per_multiprocessor / threads, gpu.blocks_per_multiprocessor);
  blocks = std::min(blocks, int(gpu.shared_per_multiprocessor / shared));
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
}
