// Blocks that wait for others in a launch that is not cooperative: each takes a number from a counter when it starts
// and waits only for smaller numbers, whose blocks have started. A wait for any other block is a deadlock.
#include <unistd.h>

#include "cuda/ptx/ptx.h"
#include "emulator/tests/support.h"

namespace athanor::cuda::testing {
namespace {

enum Bug {
  kSound,
  kSlowFirst,  // sound: the others look more often for the first block than a clock has ticks
  kNoWait,
  kRelaxedFlag,
  kLaterBlock,
  kBlockIndex,  // waits in the order of blockIdx, in which blocks need not start
};

constexpr int kBlocks = 8, kThreads = 64;

// sum += x[number] for each block's number, from 0 on.
template <int B>
__global__ void ordered_sum(float* sum, const float* x, uint32_t* ticket, uint32_t* added) {
  SHARED(uint32_t, number, [1]);
  if (threadIdx.x == 0) number[0] = B == kBlockIndex ? blockIdx.x : atomicAdd(ticket, 1u);
  __syncthreads();
  if (threadIdx.x != kThreads - 1) return;
  const uint32_t place = B == kLaterBlock ? gridDim.x - 1 - number[0] : number[0];
  if constexpr (B == kSlowFirst) {
    float busy = 1;
    if (place == 0)
      for (int i = 0; i < 200'000'000; ++i) busy = busy * 0.5f + 1;
    if (busy == 0) *sum = busy;
  }
  if constexpr (B != kNoWait)
    while (ptx::load_acquire(added) != place) __nanosleep(20);
  *sum += x[place];
  if constexpr (B == kRelaxedFlag) {
    atomicAdd(added, 1u);
  } else {
    ptx::store_release(added, place + 1);
  }
}

#ifndef __CUDACC__
// Two blocks wait for each other by turns. The second looks in vain for so long that it counts as stuck, and then its
// OS thread is not scheduled for a while, in which the first goes on and waits for it.
__global__ void wait_for_each_other(uint32_t* ticket, uint32_t* first, uint32_t* second) {
  if (atomicAdd(ticket, 1u) == 0) {
    while (atomicAdd(ticket, 0u) < 2) {
    }
    float busy = 1;
    for (int i = 0; i < 200'000'000; ++i) busy = busy * 0.5f + 1;
    ptx::store_release(first, busy > 0 ? 1u : 0u);
    while (ptx::load_acquire(second) == 0) __nanosleep(20);
  } else {
    for (int looks = 0; ptx::load_acquire(first) == 0; ++looks) {
      if (looks == 250'000) usleep(1'000'000);
      __nanosleep(20);
    }
    ptx::store_release(second, 1u);
  }
}
#endif

template <int B>
void run_ordered_sum(Error& error) {
  Values values;
  const auto x = values.vector<float>(kBlocks);
  DeviceBuffer<float> in(x), sum(1);
  DeviceBuffer<uint32_t> counters(2);
  sum.fill(0);
  counters.fill(0);
  (void)launch(ordered_sum<B>, {dim3(kBlocks), dim3(kThreads)}, sum.get(), in.get(), counters.get(),
               counters.get() + 1);
  float want = 0;
  for (const float v : x) want += v;
  error.add(sum.read()[0], want, 1e-30, 0);  // the same bits
}

#ifdef __CUDACC__
TEST(TicketKernel, SumsInOrder) {
  expect_sound([](Error& e) { run_ordered_sum<kSound>(e); });
}
#else
using emu::Fault;

class Residents {
 public:
  Residents(int threads, int blocks) {
    emu::set_threads(threads);
    emu::set_resident_blocks(blocks);
  }
  ~Residents() {
    emu::set_threads(1);
    emu::set_resident_blocks(1);
  }
};

TEST(TicketKernel, SumsInOrder) {
  for (const int threads : {1, 2})
    for (const int blocks : {1, 3, 8}) {
      const Residents residents(threads, blocks);
      expect_sound([](Error& e) { run_ordered_sum<kSound>(e); }, 10);
    }
}
TEST(TicketKernel, MayWaitLongForAnotherOsThread) {
  const Residents residents(2, 1);
  expect_sound([](Error& e) { run_ordered_sum<kSlowFirst>(e); }, 1);
}
TEST(TicketKernel, MayWaitForOneThatIsNotScheduledForLong) {
  const Residents residents(2, 1);
  expect_sound(
      [](Error& error) {
        DeviceBuffer<uint32_t> counters(3);
        counters.fill(0);
        uint32_t* c = counters.get();
        (void)launch(wait_for_each_other, {dim3(2), dim3(1)}, c, c + 1, c + 2);
        error.add(float(counters.read()[2]), 1, 1e-30, 0);
      },
      1);
}
TEST(PlantedBug, SumThatDoesNotWaitForItsTurn) {
  const Residents residents(1, 3);
  expect_found({Fault::kRace}, [](Error& e) { run_ordered_sum<kNoWait>(e); });
}
TEST(PlantedBug, TurnWithoutRelease) {
  const Residents residents(1, 3);
  expect_found({Fault::kRace}, [](Error& e) { run_ordered_sum<kRelaxedFlag>(e); });
}
TEST(PlantedBug, WaitForALaterBlock) {
  for (const auto& [threads, blocks] : {std::pair(1, 3), std::pair(2, 1)}) {
    const Residents residents(threads, blocks);
    expect_found(
        {Fault::kDeadlock}, [](Error& e) { run_ordered_sum<kLaterBlock>(e); }, true);
  }
}
TEST(PlantedBug, WaitInTheOrderOfBlockNumbers) {
  expect_found(
      {Fault::kDeadlock}, [](Error& e) { run_ordered_sum<kBlockIndex>(e); }, true);
}
#endif
}  // namespace
}  // namespace athanor::cuda::testing
