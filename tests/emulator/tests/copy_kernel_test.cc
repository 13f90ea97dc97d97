// Asynchronous copies: flat bulk copies and reductions, TMA with every swizzle, boxes that hang over the edges.
#include "cuda/ptx/ptx.h"
#include "emulator/tests/support.h"
#include "emulator/tests/tensor_map.h"

namespace athanor::cuda::testing {
namespace {

enum Bug { kSound, kNoFence, kReadWaitOnly, kNoWait, kBytesBeyondCount };

// out += 2 x, by a bulk load, a bulk reduction and a bulk store of the doubled values to `copy`.
template <class T, int B>
__global__ void twice(const T* x, T* out, T* copy, T* check, int n) {
#if PTX_SM90
  DYN_SMEM(raw);
  SHARED(uint64_t, full, [1]);
  T* values = reinterpret_cast<T*>(raw);
  const uint32_t bytes = static_cast<uint32_t>(n) * sizeof(T);
  if (threadIdx.x == 0) {
    ptx::mbar_init(full, 1);
    ptx::fence_mbar_init();
    ptx::mbar_expect_bytes(full, bytes + (B == kBytesBeyondCount ? 1u << 20 : 0));
    ptx::bulk_load(values, x, bytes, full);
  }
  __syncthreads();
  if constexpr (B != kNoWait) ptx::mbar_wait(full, 0);
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    values[i] = from_float<T>(2 * to_float(values[i]));
  }
  if constexpr (B != kNoFence) ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::bulk_reduce_add(out, values, bytes);
    ptx::bulk_store(copy, values, bytes);
    ptx::bulk_commit();
    if constexpr (B == kReadWaitOnly) {
      ptx::bulk_wait_read<0>();
    } else {
      ptx::bulk_wait<0>();
    }
    for (int i = 0; i < n; ++i) check[i] = copy[i];  // the writes must have arrived
  }
#endif
}

template <class T, int B>
void run_twice(Error& error) {
  constexpr int kCount = 256;
  Values values;
  const auto x = values.vector<T>(kCount), y = values.vector<T>(kCount);
  DeviceBuffer<T> in(x), out(y), copy(kCount), check(kCount);
  (void)launch(twice<T, B>, {dim3(1), dim3(64), kCount * sizeof(T)}, in.get(), out.get(), copy.get(), check.get(),
               kCount);
  const auto sum = out.read(), copied = copy.read(), checked = check.read();
  for (int i = 0; i < kCount; ++i) {
    const double doubled = 2.0 * to_float(x[i]);
    error.add(to_float(copied[i]), doubled, 1e-9, 1e-9);
    error.add(to_float(checked[i]), doubled, 1e-9, 1e-9);
    error.add(to_float(sum[i]), to_float(from_float<T>(static_cast<float>(to_float(y[i]) + doubled))), 1e-9, 1e-9);
  }
}

TEST(CopyKernel, BulkLoadStoreReduce) {
  if (!has_capability(9)) GTEST_SKIP() << "bulk copies need compute capability 9.0";
  expect_sound([](Error& e) { run_twice<float, kSound>(e); });
  expect_sound([](Error& e) { run_twice<bf16, kSound>(e); });
  expect_sound([](Error& e) { run_twice<fp16, kSound>(e); });
}

// x doubled in place: whoever waited for the copies of x may overwrite it.
template <int B>
__global__ void double_in_place(float* x, int n) {
#if PTX_SM90
  DYN_SMEM(raw);
  SHARED(uint64_t, full, [1]);
  if (threadIdx.x == 0) {
    ptx::mbar_init(full, 1);
    ptx::fence_mbar_init();
    ptx::mbar_expect_bytes(full, static_cast<uint32_t>(n) * sizeof(float));
    ptx::bulk_load(raw, x, static_cast<uint32_t>(n) * sizeof(float), full);
  }
  __syncthreads();
  const bool waits = B != kNoWait || threadIdx.x < 32;
  if (waits) ptx::mbar_wait(full, 0);
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x))
    x[i] = waits ? 2 * reinterpret_cast<const float*>(raw)[i] : 0.f;
#endif
}
template <int B>
void run_in_place(Error& error) {
  constexpr int kCount = 256;
  Values values;
  const auto x = values.vector<float>(kCount);
  DeviceBuffer<float> in(x);
  (void)launch(double_in_place<B>, {dim3(1), dim3(64), kCount * sizeof(float)}, in.get(), kCount);
  const auto doubled = in.read();
  for (int i = 0; i < kCount; ++i) error.add(doubled[i], 2.0 * x[i], 1e-9, 1e-9);
}
TEST(CopyKernel, WhatIsCopiedMayBeOverwrittenThen) {
  if (!has_capability(9)) GTEST_SKIP() << "bulk copies need compute capability 9.0";
  expect_sound([](Error& e) { run_in_place<kSound>(e); });
}

// A 3D tile as it lies in shared memory, and back to another tensor, added.
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
    ptx::tma_reduce_add(&to, raw, x, y, z);
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
        if (inside) want[source] = to_float(from_float<bf16>(static_cast<float>(want[source] + value)));
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
  expect_sound([](Error& e) { run_twice<float, kSound>(e); }, emu::kChecking ? 100 : 10);
}
TEST(PlantedBug, BulkStoreWithoutProxyFence) {
  expect_found({Fault::kProxy}, [](Error& e) { run_twice<float, kNoFence>(e); });
}
TEST(PlantedBug, OverwritesWhatABulkLoadStillReads) {
  expect_found({Fault::kRace}, [](Error& e) { run_in_place<kNoWait>(e); });
}
TEST(PlantedBug, ReadsWhatABulkStoreHasNotWritten) {
  const std::set<Fault> any = {Fault::kRace, Fault::kUninitialized};
  expect_found(any, [](Error& e) { run_twice<float, kReadWaitOnly>(e); });
}
__global__ void load_and_leave(const float* x) {
  DYN_SMEM(raw);
  SHARED(uint64_t, full, [1]);
  ptx::mbar_init(full, 1);
  ptx::fence_mbar_init();
  ptx::mbar_expect_bytes(full, 64);
  ptx::bulk_load(raw, x, 64, full);
}
TEST(PlantedBug, BlockLeavesItsBulkLoadBehind) {
  const auto run = [](Error&) {
    DeviceBuffer<float> x(std::vector<float>(16));
    (void)launch(load_and_leave, {dim3(1), dim3(1), 64}, x.get());
  };
  expect_found({Fault::kInFlight}, run, true);
}
TEST(PlantedBug, MoreBytesThanAnMbarrierCounts) {
  expect_found(
      {Fault::kMbarrier}, [](Error& e) { run_twice<float, kBytesBeyondCount>(e); }, true);
}
TEST(PlantedBug, BulkLoadNotWaitedFor) {
  const std::set<Fault> any = {Fault::kRace, Fault::kInFlight};
  expect_found(any, [](Error& e) { run_twice<float, kNoWait>(e); });
}
#endif
}  // namespace
}  // namespace athanor::cuda::testing
