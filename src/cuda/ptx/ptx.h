// All inline PTX is in this header and the ptx_*.h that it includes: instructions on GPUs, calls of emulations on the
// emulated GPU of the tests. Shared-memory operands are plain pointers. Functions that need sm_90 or sm_90a are
// declared under PTX_SM90 or PTX_SM90A; kernels for several architectures test these macros too.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "cuda/launch.h"

#if !defined(__CUDACC__)
#define PTX_SM90 1
#define PTX_SM90A 1
#include "cuda/host/instructions.h"
#else
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PTX_SM90 1
#else
#define PTX_SM90 0
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PTX_SM90A 1
#else
#define PTX_SM90A 0
#endif
#endif

namespace athanor::cuda::ptx {
#ifdef __CUDACC__
#define PTX_FUNCTION __device__ __forceinline__
PTX_FUNCTION uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// ---- 16 bytes to global memory
PTX_FUNCTION void st_global16(void* to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// ---- cp.async: 16 bytes bypassing L1; fills with zeros if not `valid`
PTX_FUNCTION void cp_async16(void* to, const void* from, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
PTX_FUNCTION void cp_async4(void* to, const void* from, bool valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 4 : 0)
               : "memory");
}
PTX_FUNCTION void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int GroupsLeft>
PTX_FUNCTION void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(GroupsLeft) : "memory");
}

// ---- named barriers 1..15 among `threads` threads of the block, a multiple of 32
PTX_FUNCTION void bar_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// ---- to pinned memory, for the host: one 64-bit store, since a store of a two-word vector need not be atomic
PTX_FUNCTION void store_for_host(uint64_t* to, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

// ---- 2^x within 2 units in the last place; results below the normal numbers are 0
PTX_FUNCTION float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- programmatic dependent launch; before sm_90 kernels never overlap
#if PTX_SM90
PTX_FUNCTION void griddep_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
PTX_FUNCTION void griddep_launch() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
PTX_FUNCTION void griddep_wait() {}
PTX_FUNCTION void griddep_launch() {}
#endif

#if PTX_SM90A
template <int Count>
PTX_FUNCTION void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
PTX_FUNCTION void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
#endif

// ---- clusters
#if PTX_SM90
PTX_FUNCTION void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
PTX_FUNCTION void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Maps a shared-memory object to the address of that of block `rank` of the cluster.
PTX_FUNCTION uint32_t cluster_address(const void* p, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
  return address;
}
#endif

#else  // the emulated GPU
#define PTX_FUNCTION inline
using emu::ptx::bar_sync;
using emu::ptx::cluster_address;
using emu::ptx::cluster_arrive;
using emu::ptx::cluster_wait;
using emu::ptx::exp2_approx;
using emu::ptx::griddep_launch;
using emu::ptx::griddep_wait;
using emu::ptx::shared_address;
using emu::ptx::store_for_host;

#define PTX_CALLER __attribute__((always_inline)) inline  // faults name the kernel's line
PTX_CALLER void cp_async16(void* to, const void* from, bool valid = true) {
  emu::ptx::copy_async(to, from, 16, valid ? 16 : 0);
}
PTX_CALLER void cp_async4(void* to, const void* from, bool valid = true) {
  emu::ptx::copy_async(to, from, 4, valid ? 4 : 0);
}
inline void cp_async_commit() { emu::ptx::copy_async_commit(); }
template <int GroupsLeft>
void cp_async_wait() {
  emu::ptx::copy_async_wait(GroupsLeft);
}
template <int Count>
void registers_increase() {
  emu::ptx::setmaxnreg(Count);
}
template <int Count>
void registers_decrease() {
  emu::ptx::setmaxnreg(Count);
}
#endif
// Every kernel calls this before it reads or writes global memory: a programmatic launch starts it while earlier
// kernels in the stream still run. Waits until these have ended and their writes are visible. From then on the next
// kernel may start while this one runs, and waits here for its end; so each kernel waits for all earlier ones.
PTX_FUNCTION void wait_for_earlier_kernels() {
  griddep_wait();
  griddep_launch();
}
#if PTX_SM90
PTX_FUNCTION void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
#endif
}  // namespace athanor::cuda::ptx

#include "cuda/ptx/ptx_bulk.h"
#include "cuda/ptx/ptx_mma.h"
