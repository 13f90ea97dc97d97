// Memory of the fake runtime: limits, misuse of pointers, leaks, what host code may touch, and who waits for a copy.
#include <cstring>

#include "emulator/runtime/library.h"
#include "emulator/tests/runtime_support.h"

namespace emu::testing {
namespace {
using RuntimeMemory = RuntimeTest;

TEST_F(RuntimeMemory, LimitIsEnforced) {
  set_memory_limit(1 << 20);
  void *first = nullptr, *second = nullptr;
  EMU_OK(cudaMalloc(&first, 700 << 10));
  size_t free_bytes = 0, total = 0;
  EMU_OK(cudaMemGetInfo(&free_bytes, &total));
  EXPECT_EQ(total, size_t{1} << 20);
  EXPECT_EQ(free_bytes, size_t{324} << 10);
  expect_refused(cudaMalloc(&second, 400 << 10), cudaErrorMemoryAllocation, "free on device 0");
  EXPECT_EQ(second, nullptr);
  EMU_OK(cudaFree(first));
  EMU_OK(cudaMalloc(&second, 400 << 10));  // room again
  EMU_OK(cudaFree(second));
}

TEST_F(RuntimeMemory, MoreThanTheEmulatorHasIsRefusedByName) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, size_t{100} << 30), cudaErrorMemoryAllocation);
  EXPECT_NE(explanation().find("not emulated"), std::string::npos) << explanation();
  (void)cudaGetLastError();
}

TEST_F(RuntimeMemory, FreshMemoryIsAlignedAndPoisoned) {
  void* memory = nullptr;
  EMU_OK(cudaMalloc(&memory, 100));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
  unsigned char bytes[100] = {};
  EMU_OK(cudaMemcpy(bytes, memory, 100, cudaMemcpyDeviceToHost));
  EXPECT_EQ(bytes[99], 0xff);
  EMU_OK(cudaFree(memory));
}

TEST_F(RuntimeMemory, WrongFreesAreErrors) {
  void *device = nullptr, *pinned = nullptr;
  EMU_OK(cudaMalloc(&device, 64));
  EMU_OK(cudaMallocHost(&pinned, 64));
  expect_refused(cudaFree(pinned), cudaErrorInvalidValue, "came from cudaMallocHost");
  expect_refused(cudaFreeHost(device), cudaErrorInvalidValue, "came from cudaMalloc");
  expect_refused(cudaFree(static_cast<char*>(device) + 1), cudaErrorInvalidValue, "not the start");
  EMU_OK(cudaFree(device));
  expect_refused(cudaFree(device), cudaErrorInvalidValue, "freed by cudaFree");
  EMU_OK(cudaFreeHost(pinned));
  expect_refused(cudaFreeHost(pinned), cudaErrorInvalidValue, "freed twice");
  EMU_OK(cudaFree(nullptr));
  int local = 0;
  expect_refused(cudaFree(&local), cudaErrorInvalidValue, "not from the CUDA runtime");
}

TEST_F(RuntimeMemory, UseAfterFreeIsFound) {
  int* memory = device_ints({1, 2, 3});
  EMU_OK(cudaFree(memory));
  int value = 0;
  expect_refused(cudaMemcpy(&value, memory, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue, "freed by cudaFree");
  expect_found(
      Fault::kBounds, "store",
      [] {
        int* gone = device_ints({1});
        EXPECT_EQ(cudaFree(gone), cudaSuccess);
        EXPECT_EQ(launch_store(nullptr, gone, 1), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), kChecking ? cudaErrorIllegalAddress : cudaSuccess);
      },
      true);
}

TEST_F(RuntimeMemory, LeaksAreListedWithTheirPlace) {
  void* memory = nullptr;
  EMU_OK(cudaMalloc(&memory, 12345));
  cudaStream_t stream = new_stream();
  cudaEvent_t event = new_event();
  const std::vector<std::string> lines = leaks();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_NE(lines[0].find("12345 bytes of cudaMalloc"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("stream"), std::string::npos) << lines[1];
  EXPECT_NE(lines[2].find("event"), std::string::npos) << lines[2];
  EMU_OK(cudaFree(memory));
  EMU_OK(cudaStreamDestroy(stream));
  EMU_OK(cudaEventDestroy(event));
  EXPECT_TRUE(leaks().empty());
}

TEST_F(RuntimeMemory, HostCodeMayNotTouchDeviceMemory) {
  int* memory = device_ints({1, 2, 3});
  EXPECT_DEATH(*static_cast<volatile int*>(memory) = 5, "host code touches device memory.*of cudaMalloc");
  EXPECT_DEATH((void)*static_cast<volatile int*>(memory + 2), "byte 8 of 12 bytes");
  EXPECT_EQ(read_ints(memory, 3), (std::vector<int>{1, 2, 3}));  // the runtime itself may
  int* pinned = pinned_ints(4, 7);
  EXPECT_EQ(*static_cast<volatile int*>(pinned + 3), 7);
  EMU_OK(cudaFreeHost(pinned));
  EMU_OK(cudaFree(memory));
}

TEST_F(RuntimeMemory, CopiesMustStayInOneAllocationAndGoTheirWay) {
  int* memory = device_ints({1, 2, 3});
  int host[8] = {};
  expect_refused(cudaMemcpy(host, memory, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue, "within one allocation");
  expect_refused(cudaMemcpy(host, memory, 12, cudaMemcpyHostToDevice), cudaErrorInvalidValue, "kind of copy");
  expect_refused(cudaMemcpy(memory, host, 12, cudaMemcpyDeviceToHost), cudaErrorInvalidValue, "kind of copy");
  expect_refused(cudaMemcpy(host, memory, 12, cudaMemcpyKind(9)), cudaErrorInvalidMemcpyDirection, "unknown kind");
  expect_refused(cudaMemcpy(host, nullptr, 12, cudaMemcpyDeviceToHost), cudaErrorInvalidValue, "null");
  expect_refused(cudaMemset(host, 0, 12), cudaErrorInvalidValue, "neither device nor pinned");
  EMU_OK(cudaMemcpy(host, memory, 12, cudaMemcpyDefault));
  EXPECT_EQ(host[2], 3);
  EMU_OK(cudaMemcpy(host, nullptr, 0, cudaMemcpyDeviceToHost));  // nothing to do
  EMU_OK(cudaFree(memory));
}

TEST_F(RuntimeMemory, CopiesCarryThatBytesWereNeverWritten) {
  auto copy_and_read = [](bool write_first) {
    void* from = nullptr;
    ASSERT_EQ(cudaMalloc(&from, 8), cudaSuccess);
    int* to = device_ints({1, 2});
    EXPECT_EQ(cudaMemset(from, 0, write_first ? 8 : 4), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(to, from, 8, cudaMemcpyDeviceToDevice), cudaSuccess);
    EXPECT_EQ(launch_add(nullptr, to, to, 1, 1), cudaSuccess);  // the first number was written
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << explanation();
    EXPECT_EQ(launch_add(nullptr, to, to + 1, 1, 1), cudaSuccess);
    (void)cudaDeviceSynchronize();
    if (write_first) {
      EXPECT_EQ(read_ints(to, 2), (std::vector<int>{1, 0}));
      (void)cudaFree(from);
      (void)cudaFree(to);
    }
  };
  copy_and_read(true);
  expect_found(
      Fault::kUninitialized, "never-written global byte", [&] { copy_and_read(false); }, true);
}

TEST_F(RuntimeMemory, PitchedFills) {
  int* memory = device_ints({1, 2, 3, 4});
  EMU_OK(cudaMemset2DAsync(memory, 8, 0, 4, 2, nullptr));
  EXPECT_EQ(read_ints(memory, 4), (std::vector<int>{0, 2, 0, 4}));
  expect_refused(cudaMemset2DAsync(memory, 4, 0, 8, 2, nullptr), cudaErrorInvalidPitchValue, "pitch is smaller");
  EMU_OK(cudaFree(memory));
}

TEST_F(RuntimeMemory, PageableSourcesAreStagedAtTheCall) {
  int* memory = device_ints({0});
  cudaStream_t stream = new_stream();
  EMU_OK(cudaDeviceSynchronize());
  set_schedule(Schedule::kLate);
  int value = 5;
  EMU_OK(cudaMemcpyAsync(memory, &value, 4, cudaMemcpyHostToDevice, stream));
  value = 6;  // allowed: the call has read it
  EMU_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(read_ints(memory, 1)[0], 5);
  EMU_OK(cudaStreamDestroy(stream));
  EMU_OK(cudaFree(memory));
}

TEST_F(RuntimeMemory, PageableDestinationsWait) {
  int* memory = device_ints({0});
  cudaStream_t stream = new_stream();
  EMU_OK(cudaDeviceSynchronize());
  set_schedule(Schedule::kLate);
  EMU_OK(launch_store(stream, memory, 9));
  int value = 0;
  EMU_OK(cudaMemcpyAsync(&value, memory, 4, cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(value, 9);
  EMU_OK(cudaStreamDestroy(stream));
  EMU_OK(cudaFree(memory));
}

TEST_F(RuntimeMemory, PinnedCopiesDoNotWait) {
  int* memory = device_ints({3});
  int* pinned = pinned_ints(1, 0);
  cudaStream_t stream = new_stream();
  EMU_OK(cudaDeviceSynchronize());
  set_schedule(Schedule::kLate);
  EMU_OK(cudaMemcpyAsync(pinned, memory, 4, cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(pinned[0], 0);  // not yet
  EMU_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(pinned[0], 3);
  EMU_OK(cudaStreamDestroy(stream));
  EMU_OK(cudaFreeHost(pinned));
  EMU_OK(cudaFree(memory));
}

// One pinned buffer carries batch after batch; `wait`: the event after each copy is waited for.
void refill(bool wait) {
  int* memory = device_ints({0, 0, 0, 0});
  int* pinned = pinned_ints(1);
  cudaStream_t stream = new_stream();
  cudaEvent_t event = new_event();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (int batch = 0; batch < 4; ++batch) {
    if (wait) (void)cudaEventSynchronize(event);
    pinned[0] = 100 + batch;
    (void)cudaMemcpyAsync(memory + batch, pinned, 4, cudaMemcpyHostToDevice, stream);
    (void)cudaEventRecord(event, stream);
  }
  (void)cudaStreamSynchronize(stream);
  if (wait) {
    EXPECT_EQ(read_ints(memory, 4), (std::vector<int>{100, 101, 102, 103}));
  }
  (void)cudaEventDestroy(event);
  (void)cudaStreamDestroy(stream);
  (void)cudaFreeHost(pinned);
  (void)cudaFree(memory);
}

TEST_F(RuntimeMemory, PinnedBufferRefilledTooEarlyIsFoundInEveryOrder) {
  expect_found(Fault::kHost, "the host changed the source", [] { refill(false); });
  for (int s = 1; s <= kSeeds; ++s) {
    seed(uint64_t(s));
    refill(true);
  }
}

TEST_F(RuntimeMemory, PinnedDestinationWrittenTooEarlyIsFound) {
  expect_found(Fault::kHost, "the host changed the destination", [] {
    int* memory = device_ints({3});
    int* pinned = pinned_ints(1, 0);
    cudaStream_t stream = new_stream();
    (void)cudaMemcpyAsync(pinned, memory, 4, cudaMemcpyDeviceToHost, stream);
    pinned[0] = 8;
    (void)cudaStreamSynchronize(stream);
  });
}

TEST_F(RuntimeMemory, BuffersThatTheStreamItselfChangesAreNoMisuse) {
  for (int s = 1; s <= kSeeds; ++s) {
    seed(uint64_t(s));
    int* memory = device_ints({3, 4});
    int* pinned = pinned_ints(1, 0);
    cudaStream_t stream = new_stream();
    EMU_OK(cudaDeviceSynchronize());
    EMU_OK(cudaMemcpyAsync(pinned, memory, 4, cudaMemcpyDeviceToHost, stream));
    LibraryOperation add_ten{.name = "add ten"};
    add_ten.compute = [pinned] { *pinned += 10; };
    EMU_OK(enqueue_operation(stream, add_ten));
    EMU_OK(cudaMemcpyAsync(memory + 1, pinned, 4, cudaMemcpyHostToDevice, stream));
    EMU_OK(launch_store(stream, pinned, 77));  // kernels may write pinned memory
    EMU_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(pinned[0], 77);
    EXPECT_EQ(read_ints(memory, 2), (std::vector<int>{3, 13}));
    EMU_OK(cudaStreamDestroy(stream));
    EMU_OK(cudaFreeHost(pinned));
    EMU_OK(cudaFree(memory));
  }
}
}  // namespace
}  // namespace emu::testing
