// Launching kernels and declaring shared memory, with the same syntax for nvcc and for the emulated GPU of the tests. A
// source with kernels includes this header first; it provides the CUDA language in both cases.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "cuda/programmatic.h"
#ifndef __CUDACC__
#include "cuda/host/language.h"
#include "cuda/host/launch_raw.h"
#endif

// SHARED(float, part, [32]); declares static shared memory. DYN_SMEM(bytes); declares the dynamic part, 1024-byte
// aligned; the compiler then pads a static part to a multiple of 1024 bytes.
#ifdef __CUDACC__
#define SHARED(type, name, ...) __shared__ __align__(16) type name __VA_ARGS__
#define DYN_SMEM(name) extern __shared__ __align__(1024) unsigned char name[]
#endif

namespace athanor::cuda {

// With `programmatic` a kernel reads and writes global memory only after ptx::wait_for_earlier_kernels().
struct LaunchConfig {
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic shared memory
  cudaStream_t stream = nullptr;
  unsigned cluster = 1;                         // blocks along x in a cluster; sm_90 and later
  bool programmatic = programmatic_launches();  // sm_90 and later
};

// Dynamic shared memory above 48 KiB minus the static part (small here) must be requested; the limit is the GPU's
// maximum per block.
template <class... P>
cudaError_t ask_for_shared(void (*kernel)(P...), size_t bytes) {
  constexpr size_t kUnasked = 32 << 10;
  if (bytes <= kUnasked) return cudaSuccess;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

#ifdef __CUDACC__
template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), const LaunchConfig& c, A&&... arguments) {
  if (const cudaError_t error = ask_for_shared(kernel, c.shared_bytes); error != cudaSuccess) return error;
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (c.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {c.cluster, 1, 1};
  }
  if (c.programmatic) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = c.grid;
  config.blockDim = c.block;
  config.dynamicSmemBytes = c.shared_bytes;
  config.stream = c.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(std::forward<A>(arguments))...);
}
#else
template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), const LaunchConfig& c, A&&... arguments) {
  static_assert((std::is_trivially_copyable_v<P> && ...), "kernel parameters are copied as bytes");
  if (const cudaError_t error = ask_for_shared(kernel, c.shared_bytes); error != cudaSuccess) return error;
  using Parameters = std::tuple<P...>;
  const Parameters parameters(static_cast<P>(std::forward<A>(arguments))...);
  const emu::Trampoline call = [](void* function, void* bytes) {
    std::apply(reinterpret_cast<void (*)(P...)>(function), *static_cast<Parameters*>(bytes));
  };
  return emu::launch_raw({reinterpret_cast<void*>(kernel), call, &parameters, sizeof parameters},
                         {c.grid, c.block, c.shared_bytes, c.stream, c.cluster, c.programmatic});
}
#endif

// Attributes of the kernel as compiled for the current device.
template <class... P>
cudaError_t find_attributes(cudaFuncAttributes& attributes, void (*kernel)(P...)) {
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}
}  // namespace athanor::cuda
