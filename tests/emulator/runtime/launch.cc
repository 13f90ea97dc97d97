// Kernel launches and what the runtime knows of kernels: their attributes, and the limits of the simulated GPU that a
// launch must keep. The codes are those that a real launch returns at once; faults inside kernels come later.
#include <algorithm>
#include <cstring>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
constexpr size_t kParameterBytes = 32764;  // since CUDA 12.1
constexpr unsigned kPortableCluster = 8;   // "Thread Block Clusters" in the programming guide

std::string dims_text(const dim3& d) {
  return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
}

void set_up_kernel(const KernelCall& call) {
  Kernel& kernel = known_kernel(call.kernel);
  kernel.trampoline = call.trampoline;
  kernel.parameter_bytes = call.parameter_bytes;
}

cudaError_t check_dimensions(const std::string& name, const LaunchShape& shape) {
  const dim3 &grid = shape.grid, &block = shape.block;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.x > 1024 || block.y > 1024 || block.z > 64) {
    return refuse(cudaErrorInvalidConfiguration,
                  name + ": a block has 1 to 1024 threads, at most 64 in z; asked: " + dims_text(block));
  }
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) {
    return refuse(cudaErrorInvalidConfiguration,
                  name + ": a grid has 1 to 2^31-1 blocks in x and 1 to 65535 in y and z; asked: " + dims_text(grid));
  }
  return cudaSuccess;
}

cudaError_t check_resources(const Kernel& kernel, const LaunchShape& shape) {
  if (shape.shared_bytes > size_t(kernel.max_dynamic_shared)) {
    return refuse(cudaErrorInvalidValue, kernel.name + ": " + std::to_string(shape.shared_bytes) +
                                             " bytes of dynamic shared memory, allowed " +
                                             std::to_string(kernel.max_dynamic_shared) +
                                             "; raise cudaFuncAttributeMaxDynamicSharedMemorySize first");
  }
  return cudaSuccess;
}

cudaError_t check_cluster(const Kernel& kernel, const LaunchShape& shape, const GpuModel& gpu) {
  if (shape.cluster <= 1) return cudaSuccess;
  if (gpu.major < 9) return refuse(cudaErrorNotSupported, kernel.name + ": " + gpu.name + " has no clusters");
  if (shape.cluster > kPortableCluster) {
    return refuse(cudaErrorInvalidClusterSize, kernel.name + ": a cluster of " + std::to_string(shape.cluster) +
                                                   " blocks, at most " + std::to_string(kPortableCluster) +
                                                   " are allowed");
  }
  if (shape.grid.x % shape.cluster != 0) {
    return refuse(cudaErrorInvalidConfiguration, kernel.name + ": grid " + dims_text(shape.grid) +
                                                     " is no multiple of the cluster of " +
                                                     std::to_string(shape.cluster));
  }
  return cudaSuccess;
}

cudaError_t check_launch(const Kernel& kernel, const LaunchShape& shape) {
  if (cudaError_t error = check_device(current_device()); error != cudaSuccess) return error;
  const GpuModel& gpu = runtime().devices[size_t(current_device())].model;
  if (kernel.parameter_bytes > kParameterBytes) {
    return not_emulated(
        (kernel.name + " with " + std::to_string(kernel.parameter_bytes) + " bytes of parameters").c_str(),
        "at most 32764 bytes are");
  }
  if (shape.programmatic && gpu.major < 9) {
    return refuse(cudaErrorNotSupported, kernel.name + ": " + gpu.name + " has no programmatic dependent launch");
  }
  for (cudaError_t error :
       {check_dimensions(kernel.name, shape), check_resources(kernel, shape), check_cluster(kernel, shape, gpu)}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t queue_launch(const Kernel& kernel, const LaunchShape& shape, std::vector<uint8_t> parameters) {
  if (cudaError_t error = check_launch(kernel, shape); error != cudaSuccess) return error;
  if (const auto& listener = runtime().launches_told_to) return listener(kernel.name, shape), cudaSuccess;
  CUstream_st* stream = find_stream(shape.stream, kernel.name.c_str());
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream->device != current_device()) {
    return refuse(cudaErrorInvalidResourceHandle, kernel.name + ": the stream is of device " +
                                                      std::to_string(stream->device) + ", the current device is " +
                                                      std::to_string(current_device()));
  }
  return enqueue(*stream, KernelAction{&kernel, std::move(parameters), shape});
}

}  // namespace

Kernel& known_kernel(const void* function) {
  Kernel& kernel = runtime().kernels[function];
  if (kernel.function == nullptr) {
    kernel.function = const_cast<void*>(function);
    kernel.name = kernel_name(function);
  }
  return kernel;
}

cudaError_t launch_raw(const KernelCall& call, const LaunchShape& shape) {
  return api("cudaLaunchKernelExC", kOrdinary, [&](Runtime&) {
    set_up_kernel(call);
    const auto* bytes = static_cast<const uint8_t*>(call.parameters);
    return queue_launch(known_kernel(call.kernel), shape, {bytes, bytes + call.parameter_bytes});
  });
}

void tell_launches(std::function<void(const std::string& kernel, const LaunchShape&)> listener) {
  std::unique_lock lock(runtime().mutex);
  runtime().launches_told_to = std::move(listener);
}

}  // namespace emu
