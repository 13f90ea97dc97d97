// CUDA's headers for a host compiler, and kernel qualifiers redefined to nothing or their nearest equivalent.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __cluster_dims__
#undef __grid_constant__
#undef __forceinline__
#undef __noinline__
#undef __align__
#define __global__ __attribute__((noinline, used, visibility("default")))
#define __device__
#define __host__
#define __constant__
#define __shared__ use_SHARED_or_DYN_SMEM_instead
#define __launch_bounds__(...)
#define __cluster_dims__(...) use_LaunchConfig_cluster_instead
#define __grid_constant__
#define __forceinline__ inline
#define __align__(n) alignas(n)

// Functions that report their memory accesses themselves: not instrumented by the compiler, not inlined.
#if defined(__clang__)
#define EMU_UNINSTRUMENTED __attribute__((noinline, no_sanitize("thread")))
#elif defined(__SANITIZE_THREAD__)
#define EMU_UNINSTRUMENTED __attribute__((noinline, no_sanitize_thread))
#else  // not inlined either: the return address identifies the line
#define EMU_UNINSTRUMENTED __attribute__((noinline))
#endif
