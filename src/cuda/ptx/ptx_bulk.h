// Part of cuda/ptx/ptx.h: mbarriers, proxy fences and TMA (sm_90).
#pragma once
#include "cuda/ptx/ptx.h"
namespace athanor::cuda::ptx {

#ifndef __CUDACC__
using emu::ptx::bulk_commit;
using emu::ptx::fence_mbar_init;
using emu::ptx::fence_proxy_async;
using emu::ptx::mbar_arrive;
using emu::ptx::mbar_expect_bytes;
using emu::ptx::mbar_init;

inline void mbar_arrive_remote_after_reads(uint32_t cluster_address) { emu::ptx::mbar_arrive_remote(cluster_address); }
inline void mbar_wait(uint64_t* barrier, uint32_t parity) { emu::ptx::mbar_wait(barrier, parity, false); }
inline void mbar_wait_to_copy(uint64_t* barrier, uint32_t parity) { emu::ptx::mbar_wait(barrier, parity, true); }
template <int GroupsLeft>
void bulk_wait_read() {
  emu::ptx::bulk_wait_read(GroupsLeft);
}
template <class... C>
void tma_load(void* to, const CUtensorMap* map, uint64_t* barrier, C... coordinates) {
  emu::ptx::tma_load(to, map, barrier, {{coordinates...}, sizeof...(C)});
}
template <class... C>
void tma_load_multicast(void* to, const CUtensorMap* map, uint64_t* barrier, uint16_t blocks, C... coordinates) {
  emu::ptx::tma_load_multicast(to, map, barrier, blocks, {{coordinates...}, sizeof...(C)});
}
template <class... C>
void tma_store(const CUtensorMap* map, const void* from, C... coordinates) {
  emu::ptx::tma_store(map, from, {{coordinates...}, sizeof...(C)});
}

#elif PTX_SM90
// ---- mbarriers. A wait passes once the phase of that parity has completed; phases are 0, 1, 0, ... from init on.
PTX_FUNCTION void mbar_init(uint64_t* b, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
PTX_FUNCTION void mbar_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// Remote arrival of a thread that has only read: with release at cluster scope it would wait for all memory accesses of
// the warp, at GPU scope.
PTX_FUNCTION void mbar_arrive_remote_after_reads(uint32_t cluster_address) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address) : "memory");
}
PTX_FUNCTION void mbar_expect_bytes(uint64_t* b, uint32_t bytes) {  // arrives once and expects further bytes
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
               : "memory");
}
PTX_FUNCTION void mbar_wait(uint64_t* b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nAGAIN_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra AGAIN_%=;\n}" ::"r"(
          shared_address(b)),
      "r"(parity)
      : "memory");
}
// Wait of a thread that then copies into memory which other blocks of the cluster have read before their remote
// arrivals. The async proxy needs no acquire at cluster scope, which would empty L1; CUTLASS's ClusterBarrier waits in
// the same way.
PTX_FUNCTION void mbar_wait_to_copy(uint64_t* b, uint32_t parity) { mbar_wait(b, parity); }
PTX_FUNCTION void fence_mbar_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Makes this thread's writes visible to the async proxy: bulk copies, TMA, wgmma.
PTX_FUNCTION void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- groups of TMA stores
PTX_FUNCTION void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int GroupsLeft>  // shared memory may be reused; global writes may still be in flight
PTX_FUNCTION void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(GroupsLeft) : "memory");
}

// ---- TMA: coordinates innermost first, two to four of them
#define PTX_UNWRAP(...) __VA_ARGS__
// The instruction has its own operands first, so coordinates start at %3 (load), %4 (multicast) and %2 (store).
#define PTX_TMA(dimensions, parameters, operands, at3, at4, at2)                                                 \
  PTX_FUNCTION void tma_load(void* to, const CUtensorMap* map, uint64_t* barrier, PTX_UNWRAP parameters) {       \
    asm volatile("cp.async.bulk.tensor." dimensions                                                              \
                 ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" at3                    \
                 "}], [%2];" ::"r"(shared_address(to)),                                                          \
                 "l"(map), "r"(shared_address(barrier)), PTX_UNWRAP operands                                     \
                 : "memory");                                                                                    \
  }                                                                                                              \
  PTX_FUNCTION void tma_load_multicast(void* to, const CUtensorMap* map, uint64_t* barrier, uint16_t blocks,     \
                                       PTX_UNWRAP parameters) {                                                  \
    asm volatile("cp.async.bulk.tensor." dimensions                                                              \
                 ".shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {" at4 \
                 "}], [%2], %3;" ::"r"(shared_address(to)),                                                      \
                 "l"(map), "r"(shared_address(barrier)), "h"(blocks), PTX_UNWRAP operands                        \
                 : "memory");                                                                                    \
  }                                                                                                              \
  PTX_FUNCTION void tma_store(const CUtensorMap* map, const void* from, PTX_UNWRAP parameters) {                 \
    asm volatile("cp.async.bulk.tensor." dimensions ".global.shared::cta.tile.bulk_group [%0, {" at2             \
                 "}], [%1];" ::"l"(map),                                                                         \
                 "r"(shared_address(from)), PTX_UNWRAP operands                                                  \
                 : "memory");                                                                                    \
  }
PTX_TMA("2d", (int x, int y), ("r"(x), "r"(y)), "%3, %4", "%4, %5", "%2, %3")
PTX_TMA("3d", (int x, int y, int z), ("r"(x), "r"(y), "r"(z)), "%3, %4, %5", "%4, %5, %6", "%2, %3, %4")
PTX_TMA("4d", (int x, int y, int z, int w), ("r"(x), "r"(y), "r"(z), "r"(w)), "%3, %4, %5, %6", "%4, %5, %6, %7",
        "%2, %3, %4, %5")
#undef PTX_TMA
#undef PTX_UNWRAP
#endif
}  // namespace athanor::cuda::ptx
