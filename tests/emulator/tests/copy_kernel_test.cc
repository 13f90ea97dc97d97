// TMA: loads and stores, every swizzle, boxes that hang over the edges.
#include "cuda/ptx/ptx.h"
#include "emulator/tests/support.h"
#include "emulator/tests/tensor_map.h"

namespace athanor::cuda::testing {
namespace {

enum Bug { kSound, kNoFence, kNoWait, kLeaves, kBytesBeyondCount };
constexpr int kCount = 256;

// Doubles x in shared memory and stores it back, or doubles it in place: whoever waited for the copy of x may do that.
template <int B, bool Store>
__global__ void twice(const __grid_constant__ CUtensorMap map, float* x) {
#if PTX_SM90
  DYN_SMEM(raw);
  SHARED(uint64_t, full, [1]);
  float* values = reinterpret_cast<float*>(raw);
  if (threadIdx.x == 0) {
    ptx::mbar_init(full, 1);
    ptx::fence_mbar_init();
    ptx::mbar_expect_bytes(full, kCount * sizeof(float) + (B == kBytesBeyondCount ? 1u << 20 : 0));
    ptx::tma_load(values, &map, full, 0, 0);
  }
  __syncthreads();
  if constexpr (B == kLeaves) return;
  const bool waits = B != kNoWait || threadIdx.x < 32;
  if (waits) ptx::mbar_wait(full, 0);
  for (int i = static_cast<int>(threadIdx.x); i < kCount; i += static_cast<int>(blockDim.x))
    (Store ? values : x)[i] = waits ? 2 * values[i] : 0.f;
  if constexpr (!Store) return;
  if constexpr (B != kNoFence) ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::tma_store(&map, values, 0, 0);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
  }
#endif
}

template <int B, bool Store>
void run_twice(Error& error) {
  Values values;
  const auto x = values.vector<float>(kCount);
  DeviceBuffer<float> memory(x);
  const auto map = tensor_map(memory.get(), {kCount, 1}, {kCount, 1}, CU_TENSOR_MAP_SWIZZLE_NONE);
  (void)launch(twice<B, Store>, {dim3(1), dim3(B == kLeaves ? 1 : 64), kCount * sizeof(float)}, map, memory.get());
  const auto doubled = memory.read();
  for (int i = 0; i < kCount; ++i) error.add(doubled[i], 2.0 * x[i], 1e-9, 1e-9);
}

TEST(CopyKernel, DoublesInSharedMemoryAndInPlace) {
  if (!has_capability(9)) GTEST_SKIP() << "TMA needs compute capability 9.0";
  expect_sound([](Error& e) { run_twice<kSound, true>(e); });
  expect_sound([](Error& e) { run_twice<kSound, false>(e); });
}

// A 3D tile as it lies in shared memory, and back to another tensor.
__global__ void tile_through(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to,
                             bf16* flat, int x, int y, int z, int bytes) {
#if PTX_SM90
  DYN_SMEM(raw);
  SHARED(uint64_t, full, [1]);
  if (threadIdx.x == 0) {
    ptx::mbar_init(full, 1);
    ptx::fence_mbar_init();
    ptx::mbar_expect_bytes(full, static_cast<uint32_t>(bytes));
    ptx::tma_load(raw, &from, full, x, y, z);
  }
  __syncthreads();
  ptx::mbar_wait(full, 0);
  for (int i = static_cast<int>(threadIdx.x); i < bytes / 16; i += 32) st16(flat + i * 8, ld16(raw + i * 16));
  if (threadIdx.x == 0) {
    ptx::tma_store(&to, raw, x, y, z);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
  }
#endif
}

void run_tile(Error& error, CUtensorMapSwizzle mode, int width) {
  constexpr int kX = 72, kY = 5, kZ = 3, kBoxY = 8, kBoxZ = 2, x0 = 16, y0 = -1, z0 = 2;
  const int chunks = width / 8, bytes = width * kBoxY * kBoxZ * 2;
  const int mask = mode == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : chunks - 1;
  Values values;
  const auto x = values.vector<bf16>(kX * kY * kZ), y = values.vector<bf16>(kX * kY * kZ);
  DeviceBuffer<bf16> in(x), out(y), flat(static_cast<size_t>(bytes) / 2);
  const auto map = [&](bf16* p) {
    return tensor_map(p, {kX, kY, kZ}, {static_cast<cuuint32_t>(width), kBoxY, kBoxZ}, mode);
  };
  ok(launch(tile_through, {dim3(1), dim3(32), static_cast<size_t>(bytes)}, map(in.get()), map(out.get()), flat.get(),
            x0, y0, z0, bytes));
  const auto tile = flat.read(), sum = out.read();
  std::vector<double> want(y.size());
  for (size_t i = 0; i < y.size(); ++i) want[i] = to_float(y[i]);
  for (int z = 0; z < kBoxZ; ++z) {
    for (int r = 0; r < kBoxY; ++r) {
      for (int c = 0; c < width; ++c) {
        const int gx = x0 + c, gy = y0 + r, gz = z0 + z;
        const bool inside = gx < kX && gy >= 0 && gy < kY && gz < kZ;
        const int source = (gz * kY + gy) * kX + gx;
        const double value = inside ? to_float(x[source]) : 0;
        const int byte = ((z * kBoxY + r) * width + c) * 2, moved = byte ^ (byte / 128 & mask) << 4;
        error.add(to_float(tile[moved / 2]), value, 1e-9, 0);
        if (inside) want[source] = value;
      }
    }
  }
  for (size_t i = 0; i < want.size(); ++i) error.add(to_float(sum[i]), want[i], 1e-9, 0);
}

TEST(CopyKernel, TilesWithEverySwizzle) {
  if (!has_capability(9)) GTEST_SKIP() << "TMA needs compute capability 9.0";
  expect_sound([](Error& e) { run_tile(e, CU_TENSOR_MAP_SWIZZLE_NONE, 64); }, 3);
  expect_sound([](Error& e) { run_tile(e, CU_TENSOR_MAP_SWIZZLE_32B, 16); }, 3);
  expect_sound([](Error& e) { run_tile(e, CU_TENSOR_MAP_SWIZZLE_64B, 32); }, 3);
  expect_sound([](Error& e) { run_tile(e, CU_TENSOR_MAP_SWIZZLE_128B, 64); }, 3);
}

#ifndef __CUDACC__
using emu::Fault;

TEST(CopyKernel, SoundOverAHundredSeeds) {
  expect_sound([](Error& e) { run_twice<kSound, true>(e); }, emu::kChecking ? 100 : 10);
}
TEST(PlantedBug, TmaStoreWithoutProxyFence) {
  expect_found({Fault::kProxy}, [](Error& e) { run_twice<kNoFence, true>(e); });
}
TEST(PlantedBug, OverwritesWhatATmaLoadStillReads) {
  expect_found({Fault::kRace}, [](Error& e) { run_twice<kNoWait, false>(e); });
}
TEST(PlantedBug, BlockLeavesItsTmaLoadBehind) {
  expect_found(
      {Fault::kInFlight}, [](Error& e) { run_twice<kLeaves, true>(e); }, true);
}
TEST(PlantedBug, MoreBytesThanAnMbarrierCounts) {
  expect_found(
      {Fault::kMbarrier}, [](Error& e) { run_twice<kBytesBeyondCount, true>(e); }, true);
}
TEST(PlantedBug, TmaLoadNotWaitedFor) {
  const std::set<Fault> any = {Fault::kRace, Fault::kInFlight};
  expect_found(any, [](Error& e) { run_twice<kNoWait, true>(e); });
}
#endif
}  // namespace
}  // namespace athanor::cuda::testing
