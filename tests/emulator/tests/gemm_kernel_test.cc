// A product by TMA, mbarriers and wgmma: a producer warp and two consumer warpgroups over a ring of stages, and the
// bugs that such kernels invite.
#include "cuda/ptx/ptx.h"
#include "cuda/ptx/ptx_wgmma.h"
#include "emulator/tests/support.h"
#include "emulator/tests/tensor_map.h"

namespace athanor::cuda::testing {
namespace {

enum Bug {
  kSound,
  kNoFullWait,
  kNoProxyFence,
  kNoWgmmaWait,
  kResultsNotNamed,
  kNamedTooEarly,
  kWrittenTooEarly,
  kNoEmptyWait,
  kInitNotPublished,
  kTooManyBytes,
  kNoWgmmaFence,
  kNoStoreWait,
  kSwappedRows,
  kOddMatrix,
  kWarpAlone,
  kBeyondThePool,
};

constexpr int kStages = 3, kATile = 128 * 128, kBTile = 64 * 128, kCTile = 64 * 128;  // bytes
constexpr size_t kSharedBytes = kStages * (kATile + kBTile) + 2 * kCTile;

// The thread that feeds the ring: tile t goes to stage t % kStages.
template <int B>
__device__ void produce(unsigned char* ring, uint64_t* full, uint64_t* empty, const CUtensorMap* a,
                        const CUtensorMap* b, int tiles) {
#if PTX_SM90A
  for (int t = 0; t < tiles; ++t) {
    const int s = t % kStages;
    if (B != kNoEmptyWait && t >= kStages) ptx::mbar_wait(&empty[s], static_cast<uint32_t>(t / kStages - 1) & 1);
    ptx::mbar_expect_bytes(&full[s], kATile + (B == kTooManyBytes ? 2 : 1) * kBTile);
    ptx::tma_load(ring + s * kATile, a, &full[s], t * 64, static_cast<int>(blockIdx.x) * 128);
    ptx::tma_load(ring + kStages * kATile + s * kBTile, b, &full[s], t * 64, static_cast<int>(blockIdx.y) * 64);
  }
#endif
}

// One consumer warpgroup: 64 x 64 of C.
template <int B>
__device__ void consume(float (&c)[32], const unsigned char* ring, uint64_t* full, uint64_t* empty, int half,
                        int tiles) {
#if PTX_SM90A
  for (int t = 0; t < tiles; ++t) {
    const int s = t % kStages;
    if constexpr (B != kNoFullWait) ptx::mbar_wait(&full[s], static_cast<uint32_t>(t / kStages) & 1);
    const uint64_t a = ptx::matrix_descriptor(ring + s * kATile + half * kATile / 2 + (B == kOddMatrix ? 128 : 0));
    const uint64_t b = ptx::matrix_descriptor(ring + kStages * kATile + s * kBTile);
    if constexpr (B != kNoWgmmaFence) ptx::wgmma_fence(c);
#pragma unroll
    for (int k = 0; k < 4; ++k) ptx::wgmma<bf16>(c, a + 2 * k, b + 2 * k, t + k > 0);  // 32 bytes further each
    ptx::wgmma_commit();
    if constexpr (B == kNamedTooEarly) {
      ptx::wgmma_wait<1>(c);
    } else {
      ptx::wgmma_wait<1>();
    }
    if constexpr (B == kWrittenTooEarly) c[3] = 0;
    if (t > 0 && threadIdx.x % 32 == 0) ptx::mbar_arrive(&empty[(t - 1) % kStages]);
  }
  if constexpr (B == kResultsNotNamed) {
    ptx::wgmma_wait<0>();
  } else if constexpr (B != kNoWgmmaWait) {
    ptx::wgmma_wait<0>(c);
  }
#endif
}

// C[M, N] = A[M, K] B[N, K]^T in tiles of 128 x 64.
template <int B>
__global__ void __launch_bounds__(384, 1)
    multiply(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
             const __grid_constant__ CUtensorMap c, int tiles) {
#if PTX_SM90A
  DYN_SMEM(ring);
  SHARED(uint64_t, full, [kStages]);
  SHARED(uint64_t, empty, [kStages]);
  const int group = static_cast<int>(threadIdx.x) / 128, thread = static_cast<int>(threadIdx.x) % 128;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbar_init(&full[i], 1);
      ptx::mbar_init(&empty[i], 8);  // consumer warps
    }
    ptx::fence_mbar_init();
  }
  if constexpr (B != kInitNotPublished) __syncthreads();
  if (group == 0) {
    if (B != kWarpAlone || thread < 32) ptx::registers_decrease<B == kBeyondThePool ? 48 : 40>();
    if (threadIdx.x == 0) produce<B>(ring, full, empty, &a, &b, tiles);
    return;
  }
  ptx::registers_increase<232>();
  float d[32];
  consume<B>(d, ring, full, empty, group - 1, tiles);
  unsigned char* tile = ring + kStages * (kATile + kBTile) + (group - 1) * kCTile;
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2), byte = (i / 4 * 8 + thread % 4 * 2) * 2;
    const __nv_bfloat162 pair = __floats2bfloat162_rn(d[i], d[i + 1]);
    uint32_t raw;
    memcpy(&raw, &pair, sizeof raw);
    st4(tile + row * 128 + (byte ^ ((row & (B == kSwappedRows ? 3 : 7)) << 4)), raw);
  }
  if constexpr (B != kNoProxyFence) ptx::fence_proxy_async();
  ptx::bar_sync(group, 128);
  if (thread == 0) {
    ptx::tma_store(&c, tile, static_cast<int>(blockIdx.y) * 64, static_cast<int>(blockIdx.x) * 128 + (group - 1) * 64);
    ptx::bulk_commit();
    if constexpr (B != kNoStoreWait) ptx::bulk_wait_read<0>();
  }
#endif
}

template <int B>
void run_multiply(Error& error, int m, int n, int k) {
  Values values;
  const auto a = values.vector<bf16>(static_cast<size_t>(m) * k), b = values.vector<bf16>(static_cast<size_t>(n) * k);
  DeviceBuffer<bf16> da(a), db(b), dc(static_cast<size_t>(m) * n);
  const auto map = [](const DeviceBuffer<bf16>& x, int rows, int columns, cuuint32_t box_rows) {
    return tensor_map(x.get(), {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)}, {64, box_rows});
  };
  const LaunchConfig config{dim3((m + 127) / 128, (n + 63) / 64), dim3(384), kSharedBytes};
  (void)launch(multiply<B>, config, map(da, m, k, 128), map(db, n, k, 64), map(dc, m, n, 64), (k + 63) / 64);
  const auto c = dc.read();
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = 0;
      for (int x = 0; x < k; ++x) sum += double{to_float(a[i * k + x])} * to_float(b[j * k + x]);
      error.add(to_float(c[i * n + j]), sum, 1e-2, 8e-3);
    }
  }
}

TEST(GemmKernel, ProducerAndConsumers) {
  if (!has_capability(9)) GTEST_SKIP() << "wgmma needs compute capability 9.0";
  expect_sound([](Error& e) { run_multiply<kSound>(e, 128, 64, 64); });
  expect_sound([](Error& e) { run_multiply<kSound>(e, 201, 136, 328); }, 2);
}

#ifndef __CUDACC__
using emu::Fault;
const std::set<Fault> kOrder = {Fault::kRace, Fault::kUninitialized, Fault::kInFlight};

TEST(GemmKernel, SoundOverAHundredSeeds) {
  expect_sound([](Error& e) { run_multiply<kSound>(e, 128, 64, 256); }, emu::kChecking ? 100 : 10);
}
TEST(PlantedBug, MissingMbarrierWait) {
  expect_found(kOrder, [](Error& e) { run_multiply<kNoFullWait>(e, 128, 64, 256); });
}
TEST(PlantedBug, MissingProxyFence) {
  expect_found({Fault::kProxy}, [](Error& e) { run_multiply<kNoProxyFence>(e, 128, 64, 64); });
}
TEST(PlantedBug, MissingWgmmaWait) {
  expect_found(
      {Fault::kInFlight}, [](Error& e) { run_multiply<kNoWgmmaWait>(e, 128, 64, 128); }, true);
}
TEST(PlantedBug, WgmmaWaitThatDoesNotNameTheResults) {
  expect_found(
      {Fault::kNone}, [](Error& e) { run_multiply<kResultsNotNamed>(e, 128, 64, 128); }, true);
}
TEST(PlantedBug, WgmmaWaitThatNamesWhatItLeavesInFlight) {
  expect_found(
      {Fault::kInFlight}, [](Error& e) { run_multiply<kNamedTooEarly>(e, 128, 64, 128); }, true);
}
TEST(PlantedBug, WritesAccumulatorsInFlight) {
  expect_found(
      {Fault::kInFlight}, [](Error& e) { run_multiply<kWrittenTooEarly>(e, 128, 64, 128); }, true);
}
TEST(PlantedBug, MatrixOffTheBoundaryOfItsSwizzle) {
  expect_found(
      {Fault::kMisaligned}, [](Error& e) { run_multiply<kOddMatrix>(e, 128, 64, 64); }, true);
}
TEST(PlantedBug, SetmaxnregOfOneWarpAlone) {
  expect_found(
      {Fault::kWarp}, [](Error& e) { run_multiply<kWarpAlone>(e, 128, 64, 64); }, true);
}
TEST(PlantedBug, MoreRegistersThanWereGivenUp) {
  expect_found(
      {Fault::kDeadlock}, [](Error& e) { run_multiply<kBeyondThePool>(e, 128, 64, 64); }, true);
}
TEST(PlantedBug, TmaOverwritesASlotInUse) {
  const std::set<Fault> any = {Fault::kMbarrier, Fault::kRace, Fault::kInFlight};
  expect_found(
      any, [](Error& e) { run_multiply<kNoEmptyWait>(e, 128, 64, 448); }, true);
}
TEST(PlantedBug, MbarrierInitNotPublished) {
  const std::set<Fault> any = {Fault::kRace, Fault::kMbarrier, Fault::kUninitialized};
  expect_found(any, [](Error& e) { run_multiply<kInitNotPublished>(e, 128, 64, 64); });
}
TEST(PlantedBug, TooManyBytesExpected) {
  expect_found(
      {Fault::kDeadlock}, [](Error& e) { run_multiply<kTooManyBytes>(e, 128, 64, 64); }, true);
}
TEST(PlantedBug, MissingWgmmaFence) {
  expect_found(
      {Fault::kProxy}, [](Error& e) { run_multiply<kNoWgmmaFence>(e, 128, 64, 64); }, true);
}
TEST(PlantedBug, StoreNotWaitedFor) {
  expect_found(
      {Fault::kInFlight}, [](Error& e) { run_multiply<kNoStoreWait>(e, 128, 64, 64); }, true);
}
TEST(PlantedBug, WrongSwizzle) {
  expect_found(
      {Fault::kNone, Fault::kUninitialized}, [](Error& e) { run_multiply<kSwappedRows>(e, 128, 64, 64); }, true);
}
#endif
}  // namespace
}  // namespace athanor::cuda::testing
