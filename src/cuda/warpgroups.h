// Warp-specialized kernels (sm_90a): a block is two consumer warpgroups, which multiply by wgmma, and one with the
// producer warp, which copies tiles by TMA into a ring of slots in shared memory. Used by attention and GEMMs.
#pragma once
#include "cuda/lanes.h"
#include "cuda/ptx/ptx_wgmma.h"
#include "cuda/ptx/tensor_map.h"
namespace athanor::cuda {

constexpr int kGroupRows = 64, kGroupThreads = 128;  // per warpgroup
constexpr int kRowBytes = kBoxColumns * 2;           // per row of a panel
// A block: two consumer warpgroups with 64 rows each, and one warpgroup with the producer warp.
constexpr int kGroups = 2, kRows = kGroups * kGroupRows, kConsumers = kGroups * kGroupThreads;
constexpr int kThreads = kConsumers + kGroupThreads;
// Kernel images for other GPUs contain no code; has_image() recognizes them by their launch bounds.
constexpr int kImageThreads = PTX_SM90A ? kThreads : 32;

// Number of SMs of the current device, which is also the number of resident blocks.
inline int multiprocessors() {
  int device = 0, count = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

template <class... P>
bool has_image(void (*kernel)(P...)) {
  cudaFuncAttributes image{};
  CUDA_CHECK(find_attributes(image, kernel));
  return image.binaryVersion == 90 && image.maxThreadsPerBlock >= kThreads;
}

#if PTX_SM90A
// 65,536 registers are 168 per thread: the producer gives up most of its share to the consumers.
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

// The warpgroup's index, by a shuffle, so that the compiler treats it as warp-uniform and keeps descriptors in uniform
// registers.
__device__ __forceinline__ int group_id() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroupThreads, 0); }

// Position in a ring, whose slots are filled and emptied in order. Before a slot's barrier `full` completes its kth
// phase, its barrier `empty` must have completed k - 1 phases.
template <int Slots>
struct PipelineState {
  int slot = 0;
  uint32_t parity = 0;  // parity of the phase in which the slot is filled
  __device__ __forceinline__ void advance() {
    if (++slot == Slots) slot = 0, parity ^= 1;
  }
};
// Blocks: thread blocks of a cluster that multicast tiles to each other; a slot is free once all of them have released
// it.
template <int Slots, int Blocks = 1>
struct Ring {
  uint64_t full[Slots], empty[Slots];
  int next[Slots];  // set by attention's producer: first row of the tensor's next tile

  // Called by one thread, followed by a barrier of the block. consumers: number of warps that release each slot.
  __device__ __forceinline__ void init(uint32_t consumers) {
    for (int i = 0; i < Slots; ++i) {
      ptx::mbar_init(&full[i], 1);
      ptx::mbar_init(&empty[i], Blocks * consumers);
    }
  }
  // Called by the producer warp: one thread waits for the slot and calls copy(slot). Only one thread may wait: another
  // one could come after the consumers have emptied the slot again, and would wait for a phase that is already over.
  template <class F>
  __device__ __forceinline__ void fill(PipelineState<Slots>& pipe, F copy) {
    if (lane_id() == 0) {
      ptx::mbar_wait_to_copy(&empty[pipe.slot], pipe.parity ^ 1);  // returns at once for the first use of each slot
      copy(pipe.slot);
    }
    pipe.advance();
  }
  template <class F>
  __device__ __forceinline__ void fill(PipelineState<Slots>& pipe, int next_row, F copy) {
    fill(pipe, [&](int slot) {
      next[slot] = next_row;
      copy(slot);
    });
  }
  // Waits until the current slot is filled, and returns it.
  __device__ __forceinline__ int wait(PipelineState<Slots>& pipe) {
    const int slot = pipe.slot;
    ptx::mbar_wait(&full[slot], pipe.parity);
    pipe.advance();
    return slot;
  }
  // Waits like wait() for the slot after `slot`; slot is even, and so is the number of slots.
  __device__ __forceinline__ int wait_next(PipelineState<Slots>& pipe, int slot) {
    ptx::mbar_wait(&full[slot + 1], pipe.parity);
    pipe.advance();
    return slot + 1;
  }
  __device__ __forceinline__ void release(int slot) {  // called by whole warps
    __syncwarp();
    if constexpr (Blocks == 1) {
      if (lane_id() == 0) ptx::mbar_arrive(&empty[slot]);
    } else {
      if (lane_id() < Blocks)
        ptx::mbar_arrive_remote_after_reads(ptx::cluster_address(&empty[slot], static_cast<uint32_t>(lane_id())));
    }
  }
};
#endif
}  // namespace athanor::cuda
