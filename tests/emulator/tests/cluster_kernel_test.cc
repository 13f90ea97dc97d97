// Blocks that work together: clusters with distributed shared memory, remote arrivals and multicast, and cooperative
// launches with grid-wide waits.
#include "cuda/ptx/ptx.h"
#include "emulator/tests/support.h"
#include "emulator/tests/tensor_map.h"

namespace athanor::cuda::testing {
namespace {

enum Bug {
  kSound,
  kNoBarrier,
  kNoLastBarrier,
  kNotCooperative,
  kRelaxedFlag,
  kMissingBlock,
  kNoEmptyWait,
};

// Each block of a cluster of four sums its values; every block adds up the sums of all through distributed memory.
template <int B>
__global__ void cluster_sums(const int* x, int* out) {
#if PTX_SM90
  SHARED(int, sum, [1]);
  if (threadIdx.x == 0) sum[0] = 0;
  __syncthreads();
  atomicAdd(sum, x[blockIdx.x * blockDim.x + threadIdx.x]);
  if constexpr (B != kNoBarrier) ptx::cluster_sync();
  if (threadIdx.x == 0) {
    int total = 0;
    for (uint32_t r = 0; r < ptx::cluster_size(); ++r) total += *ptx::cluster_pointer(&sum[0], r);
    out[blockIdx.x] = total * 100 + static_cast<int>(ptx::cluster_rank());
  }
  if constexpr (B != kNoLastBarrier) ptx::cluster_sync();  // nobody leaves while others read its memory
#endif
}

template <int B>
void run_cluster_sums(Error& error) {
  std::vector<int> x(8 * 64);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int>(i * i % 31);
  DeviceBuffer<int> in(x), out(8);
  LaunchConfig config{dim3(8), dim3(64)};
  config.cluster = 4;
  (void)launch(cluster_sums<B>, config, in.get(), out.get());
  const auto got = out.read();
  for (int b = 0; b < 8; ++b) {
    int total = 0;
    for (int i = b / 4 * 256; i < b / 4 * 256 + 256; ++i) total += x[i];
    error.add(got[b], total * 100 + b % 4, 0.1, 0);
  }
}

TEST(ClusterKernel, DistributedSharedMemory) {
  if (!has_capability(9)) GTEST_SKIP() << "clusters need compute capability 9.0";
  expect_sound([](Error& e) { run_cluster_sums<kSound>(e); });
}

// Two blocks: each loads one half of a tile for both of them, again and again; consumers free the stage by remote
// arrivals at both producers.
template <int B>
__global__ void multicast(const __grid_constant__ CUtensorMap map, float* out, int rounds) {
#if PTX_SM90
  DYN_SMEM(tile);  // two halves of 16 rows x 32 floats
  SHARED(uint64_t, full, [1]);
  SHARED(uint64_t, empty, [1]);
  const uint32_t rank = ptx::cluster_rank();
  if (threadIdx.x == 0) {
    ptx::mbar_init(full, 1);
    ptx::mbar_init(empty, 2);
    ptx::fence_mbar_init();
  }
  ptx::cluster_sync();
  for (int r = 0; r < rounds; ++r) {
    if (threadIdx.x == 0) {
      if (B != kNoEmptyWait && r > 0) ptx::mbar_wait_to_copy(empty, static_cast<uint32_t>(r - 1) & 1);
      ptx::mbar_expect_bytes(full, 4096);
      ptx::tma_load_multicast(tile + rank * 2048, &map, full, uint16_t{3}, 0, r * 32 + static_cast<int>(rank) * 16);
    }
    ptx::mbar_wait(full, static_cast<uint32_t>(r) & 1);
    const float* rows = reinterpret_cast<const float*>(tile);
    for (unsigned i = threadIdx.x; i < 1024; i += blockDim.x) out[(blockIdx.x * rounds + r) * 1024 + i] = rows[i];
    __syncthreads();
    if (threadIdx.x < 2) ptx::mbar_arrive_remote(ptx::cluster_address(empty, threadIdx.x));
  }
  ptx::cluster_sync();
#endif
}

template <int B>
void run_multicast(Error& error, int rounds) {
  Values values;
  const auto x = values.vector<float>(static_cast<size_t>(rounds) * 1024);
  DeviceBuffer<float> in(x), out(x.size() * 2);
  const auto map =
      tensor_map(in.get(), {32, static_cast<cuuint64_t>(rounds) * 32}, {32, 16}, CU_TENSOR_MAP_SWIZZLE_NONE);
  LaunchConfig config{dim3(2), dim3(64), 4096};
  config.cluster = 2;
  (void)launch(multicast<B>, config, map, out.get(), rounds);
  const auto got = out.read();
  for (size_t i = 0; i < got.size(); ++i) error.add(got[i], x[i % x.size()], 1e-9, 0);
}

TEST(ClusterKernel, Multicast) {
  if (!has_capability(9)) GTEST_SKIP() << "clusters need compute capability 9.0";
  expect_sound([](Error& e) { run_multicast<kSound>(e, 5); });
}

// All blocks of the grid wait for each other twice: x[i] -> sum of neighbours, two rounds, between two buffers.
template <int B>
__device__ void grid_wait(uint32_t* arrived, uint32_t round) {
  __syncthreads();
  if (threadIdx.x == 0) {
    if constexpr (B == kRelaxedFlag) {
      atomicAdd(arrived, 1u);
    } else {
      ptx::add_release(arrived, 1);
    }
    while (ptx::load_acquire(arrived) < gridDim.x * (round + 1) + (B == kMissingBlock ? 1 : 0)) __nanosleep(100);
  }
  __syncthreads();
}

template <int B>
__global__ void smooth(float* a, float* b, uint32_t* arrived, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  b[i] = a[(i + n - 1) % n] + a[(i + 1) % n];
  grid_wait<B>(arrived, 0);
  a[i] = b[(i + n - 1) % n] + b[(i + 1) % n];
  if constexpr (B != kNoBarrier) grid_wait<B>(arrived, 1);
  b[i] = a[(i + n - 1) % n] + a[(i + 1) % n];
}

template <int B>
void run_smooth(Error& error) {
  constexpr int kCount = 6 * 64;
  Values values;
  auto x = values.vector<float>(kCount);
  DeviceBuffer<float> a(x), b(x.size());
  DeviceBuffer<uint32_t> arrived(1);
  arrived.fill(0);
  LaunchConfig config{dim3(6), dim3(64)};
  config.cooperative = B != kNotCooperative;
  (void)launch(smooth<B>, config, a.get(), b.get(), arrived.get(), kCount);
  for (int round = 0; round < 3; ++round) {
    const auto old = x;
    for (int i = 0; i < kCount; ++i) x[i] = old[(i + kCount - 1) % kCount] + old[(i + 1) % kCount];
  }
  const auto got = b.read();
  for (int i = 0; i < kCount; ++i) error.add(got[i], x[i], 1e-5, 1e-5);
}

TEST(CooperativeKernel, GridWideWaits) {
  expect_sound([](Error& e) { run_smooth<kSound>(e); });
}

#ifndef __CUDACC__
using emu::Fault;

TEST(ClusterKernel, SoundOverAHundredSeeds) {
  const int seeds = emu::kChecking ? 100 : 10;
  expect_sound([](Error& e) { run_cluster_sums<kSound>(e); }, seeds);
  expect_sound([](Error& e) { run_multicast<kSound>(e, 3); }, seeds);
  expect_sound([](Error& e) { run_smooth<kSound>(e); }, seeds);
}
TEST(PlantedBug, MissingClusterBarrier) {
  const std::set<Fault> any = {Fault::kRace, Fault::kUninitialized, Fault::kBounds};
  expect_found(any, [](Error& e) { run_cluster_sums<kNoBarrier>(e); });
}
TEST(PlantedBug, BlockLeavesWhileOthersReadItsMemory) {
  expect_found({Fault::kBounds}, [](Error& e) { run_cluster_sums<kNoLastBarrier>(e); });
}
TEST(PlantedBug, MulticastOverwritesASlotInUse) {
  const std::set<Fault> any = {Fault::kRace, Fault::kInFlight, Fault::kMbarrier};
  expect_found(any, [](Error& e) { run_multicast<kNoEmptyWait>(e, 5); });
}
TEST(PlantedBug, GridWaitWithoutRelease) {
  expect_found({Fault::kRace}, [](Error& e) { run_smooth<kRelaxedFlag>(e); });
}
TEST(PlantedBug, MissingGridWait) {
  expect_found({Fault::kRace}, [](Error& e) { run_smooth<kNoBarrier>(e); });
}
TEST(PlantedBug, GridWaitForABlockThatDoesNotExist) {
  expect_found(
      {Fault::kDeadlock}, [](Error& e) { run_smooth<kMissingBlock>(e); }, true);
}
TEST(PlantedBug, BlocksWaitWithoutACooperativeLaunch) {
  expect_found(
      {Fault::kDeadlock}, [](Error& e) { run_smooth<kNotCooperative>(e); }, true);
}
#endif
}  // namespace
}  // namespace athanor::cuda::testing
