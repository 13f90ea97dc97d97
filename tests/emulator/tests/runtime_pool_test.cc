// Stream-ordered allocation and memory pools.
#include "emulator/tests/runtime_support.h"

namespace emu::testing {
namespace {
using RuntimePool = RuntimeTest;

uint64_t attribute(cudaMemPool_t pool, cudaMemPoolAttr which) {
  uint64_t value = 0;
  EXPECT_EQ(cudaMemPoolGetAttribute(pool, which, &value), cudaSuccess);
  return value;
}

TEST_F(RuntimePool, MemoryLivesFromItsAllocationToItsFree) {
  for (int s = 1; s <= kSeeds; ++s) {
    seed(uint64_t(s));
    cudaStream_t stream = new_stream();
    void* memory = nullptr;
    EMU_OK(cudaMallocAsync(&memory, 4, stream));
    EMU_OK(launch_store(stream, static_cast<int*>(memory), 5));
    int value = 0;
    EMU_OK(cudaMemcpyAsync(&value, memory, 4, cudaMemcpyDeviceToHost, stream));
    EXPECT_EQ(value, 5);
    EMU_OK(cudaFreeAsync(memory, stream));
    expect_refused(cudaFreeAsync(memory, stream), cudaErrorInvalidValue, "freed twice");
    EMU_OK(cudaStreamSynchronize(stream));
    EMU_OK(cudaStreamDestroy(stream));
  }
}

TEST_F(RuntimePool, UseAfterAsynchronousFreeIsFound) {
  expect_found(
      Fault::kBounds, "store",
      [] {
        cudaStream_t stream = new_stream();
        void* memory = nullptr;
        EXPECT_EQ(cudaMallocAsync(&memory, 4, stream), cudaSuccess);
        EXPECT_EQ(cudaFreeAsync(memory, stream), cudaSuccess);
        EXPECT_EQ(launch_store(stream, static_cast<int*>(memory), 5), cudaSuccess);
      },
      true);
}

TEST_F(RuntimePool, FreeOnAnotherStreamNeedsOrder) {
  auto free_elsewhere = [](bool ordered) {
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t event = new_event();
    void* memory = nullptr;
    (void)cudaMallocAsync(&memory, 4, a);
    (void)launch_store(a, static_cast<int*>(memory), 5);
    (void)cudaEventRecord(event, a);
    if (ordered) (void)cudaStreamWaitEvent(b, event, 0);
    (void)cudaFreeAsync(memory, b);
    (void)cudaDeviceSynchronize();
    (void)cudaEventDestroy(event);
    (void)cudaStreamDestroy(a);
    (void)cudaStreamDestroy(b);
  };
  for (int s = 1; s <= kSeeds; ++s) {
    seed(uint64_t(s));
    free_elsewhere(true);
    ASSERT_EQ(take_report().fault, Fault::kNone);
  }
  for (int s = 1; s <= kSeeds && kChecking; ++s) {  // a race, or a store to memory that is not there
    seed(uint64_t(s));
    free_elsewhere(false);
    const Report report = take_report();
    EXPECT_TRUE(report.fault == Fault::kRace || report.fault == Fault::kBounds) << s << ": " << report.text;
  }
  simulate({gpu_h200()});
}

TEST_F(RuntimePool, ReservedMemoryIsKeptUpToTheThreshold) {
  cudaMemPool_t pool = nullptr;
  EMU_OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  void *first = nullptr, *second = nullptr;
  EMU_OK(cudaMallocAsync(&first, 1000, nullptr));
  EMU_OK(cudaMallocAsync(&second, 500, nullptr));
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent), 1500u);
  EMU_OK(cudaFreeAsync(first, nullptr));
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrUsedMemCurrent), 500u);
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrReservedMemCurrent), 1500u);
  uint64_t threshold = 800;
  EMU_OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  EMU_OK(cudaStreamSynchronize(nullptr));
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrReservedMemCurrent), 800u);
  EMU_OK(cudaMemPoolTrimTo(pool, 0));
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrReservedMemCurrent), 500u);
  EXPECT_EQ(attribute(pool, cudaMemPoolAttrReservedMemHigh), 1500u);
  EMU_OK(cudaFreeAsync(second, nullptr));
  EMU_OK(cudaDeviceSynchronize());
  uint64_t one = 1;
  expect_refused(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &one), cudaErrorInvalidValue,
                 "only be read");
  expect_refused(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &one), cudaErrorInvalidValue, "set to 0");
}

TEST_F(RuntimePool, PoolsCountTowardsTheLimit) {
  set_memory_limit(1000);
  void *memory = nullptr, *more = nullptr;
  EMU_OK(cudaMallocAsync(&memory, 900, nullptr));
  expect_refused(cudaMallocAsync(&more, 200, nullptr), cudaErrorMemoryAllocation, "must grow by 200");
  expect_refused(cudaMalloc(&more, 200), cudaErrorMemoryAllocation, "free on device 0");
  EMU_OK(cudaFreeAsync(memory, nullptr));
  expect_refused(cudaMalloc(&more, 200), cudaErrorMemoryAllocation, "free on device 0");  // still reserved
  EMU_OK(cudaStreamSynchronize(nullptr));
  EMU_OK(cudaMalloc(&more, 200));
  EMU_OK(cudaFree(more));
}

TEST_F(RuntimePool, OwnPools) {
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.maxSize = 1000;
  cudaMemPool_t pool = nullptr;
  EMU_OK(cudaMemPoolCreate(&pool, &props));
  void *memory = nullptr, *more = nullptr;
  EMU_OK(cudaMallocFromPoolAsync(&memory, 800, pool, nullptr));
  expect_refused(cudaMallocFromPoolAsync(&more, 300, pool, nullptr), cudaErrorMemoryAllocation, "pool may hold 1000");
  EMU_OK(cudaDeviceSetMemPool(0, pool));
  expect_refused(cudaMallocAsync(&more, 300, nullptr), cudaErrorMemoryAllocation, "pool may hold");
  EMU_OK(cudaMemPoolDestroy(pool));
  expect_refused(cudaMemPoolTrimTo(pool, 0), cudaErrorInvalidValue, "not a memory pool");
  EMU_OK(cudaMallocAsync(&more, 300, nullptr));  // the default pool again
  EMU_OK(cudaFreeAsync(more, nullptr));
  EMU_OK(cudaFree(memory));  // cudaFree takes such memory too
  cudaMemPool_t standard = nullptr;
  EMU_OK(cudaDeviceGetMemPool(&standard, 0));
  expect_refused(cudaMemPoolDestroy(standard), cudaErrorInvalidValue, "default pool stays");
  props.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  expect_refused(cudaMemPoolCreate(&pool, &props), cudaErrorNotSupported, "threads of one process");
}
}  // namespace
}  // namespace emu::testing
