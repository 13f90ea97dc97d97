// Loads and stores of a given width. Kernels use these for vectors, so that the width is kept and the emulated GPU can
// check the alignment; the optimizer may split plain vector accesses.
#pragma once
#include "cuda/ptx/ptx.h"
namespace athanor::cuda {

#ifdef __CUDACC__
__device__ __forceinline__ uint4 ld16(const void* p) { return *static_cast<const uint4*>(p); }
__device__ __forceinline__ uint2 ld8(const void* p) { return *static_cast<const uint2*>(p); }
__device__ __forceinline__ uint32_t ld4(const void* p) { return *static_cast<const uint32_t*>(p); }
__device__ __forceinline__ void st16(void* p, uint4 v) { *static_cast<uint4*>(p) = v; }
__device__ __forceinline__ void st8(void* p, uint2 v) { *static_cast<uint2*>(p) = v; }
__device__ __forceinline__ void st4(void* p, uint32_t v) { *static_cast<uint32_t*>(p) = v; }
// Stores to global memory in one instruction; the compiler may split st16 between other stores.
__device__ __forceinline__ void st16_global(void* p, uint4 v) { ptx::st_global16(p, v); }
// Streaming access (evict first), for data that is used once.
__device__ __forceinline__ uint4 ld16_streaming(const void* p) { return __ldcs(static_cast<const uint4*>(p)); }
__device__ __forceinline__ void st16_streaming(void* p, uint4 v) { __stcs(static_cast<uint4*>(p), v); }
#else
// Always inlined, so that the emulator sees the kernel's line as the caller.
#define ATHANOR_ACCESS __attribute__((always_inline)) inline
ATHANOR_ACCESS uint4 ld16(const void* p) { return emu::load<uint4>(p, "16-byte load"); }
ATHANOR_ACCESS uint2 ld8(const void* p) { return emu::load<uint2>(p, "8-byte load"); }
ATHANOR_ACCESS uint32_t ld4(const void* p) { return emu::load<uint32_t>(p, "4-byte load"); }
ATHANOR_ACCESS void st16(void* p, uint4 v) { emu::store(p, v, "16-byte store"); }
ATHANOR_ACCESS void st8(void* p, uint2 v) { emu::store(p, v, "8-byte store"); }
ATHANOR_ACCESS void st4(void* p, uint32_t v) { emu::store(p, v, "4-byte store"); }
ATHANOR_ACCESS void st16_global(void* p, uint4 v) { emu::store(p, v, "16-byte store"); }
ATHANOR_ACCESS uint4 ld16_streaming(const void* p) { return emu::load<uint4>(p, "16-byte load"); }
ATHANOR_ACCESS void st16_streaming(void* p, uint4 v) { emu::store(p, v, "16-byte store"); }
#undef ATHANOR_ACCESS
#endif
}  // namespace athanor::cuda
