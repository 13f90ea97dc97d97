// Attributes of kernels.
#include "emulator/runtime/api.h"

namespace emu {
namespace {
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
