// Blocks of a cluster: cluster barriers, remote arrivals and multicast.
#include "cuda/ptx/ptx.h"
#include "emulator/tests/support.h"
#include "emulator/tests/tensor_map.h"

namespace athanor::cuda::testing {
namespace {

enum Bug { kSound, kNoBarrier, kNoEmptyWait };

// Two blocks: each loads one half of a tile for both of them, again and again; consumers free the stage by remote
// arrivals at both producers.
template <int B>
__global__ void multicast(const __grid_constant__ CUtensorMap map, float* out, int rounds) {
#if PTX_SM90
  DYN_SMEM(tile);  // two halves of 16 rows x 32 floats
  SHARED(uint64_t, full, [1]);
  SHARED(uint64_t, empty, [1]);
  const uint32_t rank = blockIdx.x;
  if (threadIdx.x == 0) {
    ptx::mbar_init(full, 1);
    ptx::mbar_init(empty, 2);
    ptx::fence_mbar_init();
  }
  if constexpr (B == kNoBarrier) {
    __syncthreads();
  } else {
    ptx::cluster_sync();
  }
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
    if (threadIdx.x < 2) ptx::mbar_arrive_remote_after_reads(ptx::cluster_address(empty, threadIdx.x));
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

#ifndef __CUDACC__
using emu::Fault;

TEST(ClusterKernel, SoundOverAHundredSeeds) {
  expect_sound([](Error& e) { run_multicast<kSound>(e, 3); }, emu::kChecking ? 100 : 10);
}
TEST(PlantedBug, MissingClusterBarrier) {
  const std::set<Fault> any = {Fault::kUninitialized, Fault::kMbarrier, Fault::kProxy, Fault::kRace};
  expect_found(any, [](Error& e) { run_multicast<kNoBarrier>(e, 5); });
}
TEST(PlantedBug, MulticastOverwritesASlotInUse) {
  const std::set<Fault> any = {Fault::kRace, Fault::kInFlight, Fault::kMbarrier};
  expect_found(any, [](Error& e) { run_multicast<kNoEmptyWait>(e, 5); });
}
#endif
}  // namespace
}  // namespace athanor::cuda::testing
