// Streams and events of the fake runtime: which order is promised, that every promised order happens and a missing one
// is found, and what time means.
#include <set>

#include "emulator/runtime/library.h"
#include "emulator/tests/runtime_support.h"

namespace emu::testing {
namespace {
using RuntimeStream = RuntimeTest;

// Stores on one stream and reads on another; with `wait`, the second waits for an event of the first.
void across_streams(bool wait) {
  int* memory = device_ints({0, 0});
  cudaStream_t a = new_stream(), b = new_stream();
  cudaEvent_t event = new_event();
  (void)cudaDeviceSynchronize();
  (void)launch_store(a, memory, 4);
  (void)cudaEventRecord(event, a);
  if (wait) (void)cudaStreamWaitEvent(b, event, 0);
  (void)launch_add(b, memory + 1, memory, 1, 10);
  (void)cudaDeviceSynchronize();
  if (wait) {
    EXPECT_EQ(read_ints(memory, 2), (std::vector<int>{4, 14}));
  }
  (void)cudaEventDestroy(event);
  (void)cudaStreamDestroy(a);
  (void)cudaStreamDestroy(b);
  (void)cudaFree(memory);
}

TEST_F(RuntimeStream, MissingEventWaitIsFoundInEveryOrder) {
  expect_found(
      Fault::kRace, "unordered", [] { across_streams(false); }, true);
}
TEST_F(RuntimeStream, EventsOrderStreams) {
  for (int s = 1; s <= 10 * kSeeds; ++s) {
    seed(uint64_t(s));
    across_streams(true);
    const Report report = take_report();
    ASSERT_EQ(report.fault, Fault::kNone) << "seed " << s << ": " << report.text;
  }
}

TEST_F(RuntimeStream, CopyUnorderedAfterKernelIsFound) {
  expect_found(
      Fault::kRace, "cudaMemcpyAsync is not ordered after",
      [] {
        int* memory = device_ints({0});
        int* pinned = pinned_ints(1);
        cudaStream_t a = new_stream(), b = new_stream();
        (void)cudaDeviceSynchronize();
        set_schedule(Schedule::kAtOnce);  // the copy comes last
        (void)launch_store(a, memory, 4);
        (void)cudaMemcpyAsync(pinned, memory, 4, cudaMemcpyDeviceToHost, b);
      },
      true);
}

TEST_F(RuntimeStream, OrderAcrossTheHostCounts) {
  for (int s = 1; s <= kSeeds; ++s) {
    seed(uint64_t(s));
    int* memory = device_ints({0, 0});
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t event = new_event();
    EMU_OK(cudaDeviceSynchronize());
    EMU_OK(launch_store(a, memory, 4));
    EMU_OK(cudaEventRecord(event, a));
    EMU_OK(cudaEventSynchronize(event));  // the host knows, and says so by launching after it
    EMU_OK(launch_add(b, memory + 1, memory, 1, 10));
    EMU_OK(cudaDeviceSynchronize());
    EXPECT_EQ(read_ints(memory, 2)[1], 14);
    EMU_OK(cudaEventDestroy(event));
    EMU_OK(cudaStreamDestroy(a));
    EMU_OK(cudaStreamDestroy(b));
    EMU_OK(cudaFree(memory));
  }
}

TEST_F(RuntimeStream, NonBlockingStreamsAreNotOrderedWithTheLegacyStream) {
  expect_found(
      Fault::kRace, "unordered",
      [] {
        int* memory = device_ints({0, 0});
        cudaStream_t stream = new_stream();
        (void)cudaDeviceSynchronize();
        (void)launch_store(nullptr, memory, 1);
        (void)launch_add(stream, memory + 1, memory, 1, 1);
      },
      true);
}

TEST_F(RuntimeStream, UnorderedWorkRunsInManyOrders) {
  std::set<std::vector<int>> orders;
  for (int s = 1; s <= 60; ++s) {
    seed(uint64_t(s));
    std::vector<int> order;
    std::vector<cudaStream_t> streams;
    for (int number = 0; number < 3; ++number) {
      streams.push_back(new_stream());
      LibraryOperation note{.name = "note"};
      note.compute = [&order, number] { order.push_back(number); };
      EMU_OK(enqueue_operation(streams.back(), note));
    }
    EMU_OK(cudaDeviceSynchronize());
    orders.insert(order);
    for (cudaStream_t stream : streams) EMU_OK(cudaStreamDestroy(stream));
  }
  EXPECT_EQ(orders.size(), 6u);  // all permutations
}

TEST_F(RuntimeStream, QueriesMakeProgress) {
  int* memory = device_ints({0});
  cudaStream_t stream = new_stream();
  EMU_OK(cudaDeviceSynchronize());
  set_schedule(Schedule::kLate);
  EMU_OK(launch_store(stream, memory, 1));
  int polls = 0;
  while (cudaStreamQuery(stream) == cudaErrorNotReady) ASSERT_LT(++polls, 1000);
  EXPECT_EQ(cudaGetLastError(), polls == 0 ? cudaSuccess : cudaErrorNotReady);
  EMU_OK(launch_add(nullptr, memory, memory, 1, 1));  // ordered: the host has seen the end of the stream
  EXPECT_EQ(read_ints(memory, 1)[0], 2);
  EMU_OK(cudaStreamDestroy(stream));
  EMU_OK(cudaFree(memory));
}

TEST_F(RuntimeStream, DestroyedHandlesAreErrors) {
  cudaStream_t stream = nullptr;
  expect_refused(cudaStreamCreateWithFlags(&stream, 0), cudaErrorNotSupported, "cudaStreamNonBlocking is");
  stream = new_stream();
  cudaEvent_t event = new_event();
  EMU_OK(cudaStreamDestroy(stream));
  expect_refused(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle, "destroyed");
  expect_refused(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle, "destroyed");
  expect_refused(cudaStreamDestroy(nullptr), cudaErrorInvalidResourceHandle, "never destroyed");
  EMU_OK(cudaEventDestroy(event));
  expect_refused(cudaEventRecord(event, nullptr), cudaErrorInvalidResourceHandle, "destroyed");
}

TEST_F(RuntimeStream, WorkOfADestroyedStreamStillRuns) {
  int* memory = device_ints({0});
  cudaStream_t stream = new_stream();
  EMU_OK(cudaDeviceSynchronize());
  set_schedule(Schedule::kLate);
  EMU_OK(launch_store(stream, memory, 6));
  EMU_OK(cudaStreamDestroy(stream));
  EMU_OK(cudaDeviceSynchronize());
  EXPECT_EQ(read_ints(memory, 1)[0], 6);
  EMU_OK(cudaFree(memory));
}

// The virtual time of `kernels` launches on as many streams as given.
float elapsed(int kernels, int streams_used, uint64_t order) {
  seed(order);
  int* memory = device_ints({0, 0});
  cudaStream_t streams[2] = {new_stream(), new_stream()};
  cudaEvent_t start = new_event(0), end = new_event(0), joined = new_event();
  (void)cudaDeviceSynchronize();
  (void)cudaEventRecord(start, streams[0]);
  (void)cudaStreamWaitEvent(streams[1], start, 0);
  for (int i = 0; i < kernels; ++i) (void)launch_store(streams[i % streams_used], memory + i % streams_used, i);
  (void)cudaEventRecord(joined, streams[1]);
  (void)cudaStreamWaitEvent(streams[0], joined, 0);
  (void)cudaEventRecord(end, streams[0]);
  (void)cudaEventSynchronize(end);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaSuccess) << explanation();
  for (cudaEvent_t event : {start, end, joined}) (void)cudaEventDestroy(event);
  for (cudaStream_t stream : streams) (void)cudaStreamDestroy(stream);
  (void)cudaFree(memory);
  return milliseconds;
}

TEST_F(RuntimeStream, TimeDependsOnTheWorkAndNotOnTheOrder) {
  const float one = elapsed(100, 1, 1);
  EXPECT_GT(one, 0);
  EXPECT_FLOAT_EQ(one, elapsed(100, 1, 2));
  EXPECT_GT(elapsed(200, 1, 1), 1.5f * one);
  EXPECT_LT(elapsed(100, 2, 1), one);  // streams overlap
}

TEST_F(RuntimeStream, TimesThatDoNotExistAreErrors) {
  cudaEvent_t start = new_event(0), end = new_event(0), untimed = new_event();
  float milliseconds = 0;
  expect_refused(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorInvalidResourceHandle, "never recorded");
  EMU_OK(cudaEventRecord(start, nullptr));
  EMU_OK(cudaEventRecord(untimed, nullptr));
  EMU_OK(cudaDeviceSynchronize());
  expect_refused(cudaEventElapsedTime(&milliseconds, start, untimed), cudaErrorInvalidResourceHandle, "DisableTiming");
  set_schedule(Schedule::kLate);
  EMU_OK(cudaEventRecord(end, nullptr));
  expect_refused(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorNotReady, "not happened yet");
  EMU_OK(cudaEventSynchronize(end));
  EMU_OK(cudaEventElapsedTime(&milliseconds, start, end));
  EXPECT_GE(milliseconds, 0);
  for (cudaEvent_t event : {start, end, untimed}) EMU_OK(cudaEventDestroy(event));
}

TEST_F(RuntimeStream, ManyOperationsBetweenSynchronisations) {
  int* memory = device_ints({0});
  cudaStream_t stream = new_stream();
  EMU_OK(cudaDeviceSynchronize());
  for (int i = 0; i < 34000; ++i) EMU_OK(cudaMemsetAsync(memory, i % 256, 4, stream));  // more than stamps can number
  EMU_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(unsigned(read_ints(memory, 1)[0]), 0xcfcfcfcf);
  EMU_OK(cudaStreamDestroy(stream));
  EMU_OK(cudaFree(memory));
}
}  // namespace
}  // namespace emu::testing
