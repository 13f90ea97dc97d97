// Operations of the fake libraries: in stream order, checked, captured, and waiting for other host threads.
#include "emulator/runtime/library.h"

#include <thread>

#include "emulator/tests/runtime_support.h"

namespace emu::testing {
namespace {
using RuntimeLibrary = RuntimeTest;

LibraryOperation doubling(int* to, const int* from) {
  LibraryOperation operation;
  operation.name = "doubling";
  operation.reads = {{from, sizeof(int)}};
  operation.writes = {{to, sizeof(int)}};
  operation.compute = [=] { *to = 2 * *from; };
  return operation;
}

TEST_F(RuntimeLibrary, OperationsKeepStreamOrderAndAreCaptured) {
  int* memory = device_ints({0, 0});
  cudaStream_t stream = new_stream();
  EMU_OK(cudaDeviceSynchronize());
  EMU_OK(launch_store(stream, memory, 4));
  EMU_OK(enqueue_operation(stream, doubling(memory + 1, memory)));
  EMU_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(read_ints(memory, 2)[1], 8);

  EMU_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_TRUE(is_capturing(stream));
  EMU_OK(enqueue_operation(stream, doubling(memory, memory)));
  cudaGraph_t graph = nullptr;
  EMU_OK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  EMU_OK(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 3; ++i) EMU_OK(cudaGraphLaunch(executable, stream));
  EMU_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(read_ints(memory, 1)[0], 32);
  EMU_OK(cudaGraphExecDestroy(executable));
  EMU_OK(cudaGraphDestroy(graph));
  EMU_OK(cudaStreamDestroy(stream));
  EMU_OK(cudaFree(memory));
}

TEST_F(RuntimeLibrary, MissingOrderAndFreedMemoryAreFound) {
  expect_found(
      Fault::kRace, "is not ordered after",
      [] {
        int* memory = device_ints({0, 0});
        cudaStream_t a = new_stream(), b = new_stream();
        (void)cudaDeviceSynchronize();
        (void)enqueue_operation(a, doubling(memory, memory + 1));
        (void)enqueue_operation(b, doubling(memory, memory + 1));
      },
      true);
  expect_found(Fault::kBounds, "doubling reads", [] {
    int* memory = device_ints({0, 0});
    (void)cudaFree(memory);
    (void)enqueue_operation(nullptr, doubling(memory, memory + 1));
  });
}

// A sum over ranks, each a thread with a stream of its own: the second half of each waits for the first of all others.
struct Meeting {
  std::vector<unsigned long long> arrived;  // guarded by the runtime's lock
  int sum = 0;
};
void take_part(Meeting& meeting, size_t ranks, cudaStream_t stream, int* value) {
  LibraryOperation arrive;
  arrive.name = "sum: arrive";
  arrive.reads = {{value, sizeof(int)}};
  arrive.compute = [&meeting, value] { meeting.sum += *value; };
  unsigned long long ticket = 0;
  EXPECT_EQ(enqueue_operation(stream, arrive, &ticket), cudaSuccess);
  LibraryOperation leave;
  leave.name = "sum: leave";
  leave.writes = {{value, sizeof(int)}};
  leave.ready = [&meeting, ranks] { return meeting.arrived.size() == ranks; };
  leave.also_after = [&meeting] { return meeting.arrived; };
  leave.compute = [&meeting, value] { *value = meeting.sum; };
  LibraryOperation note;  // runs in stream order after `arrive`
  note.name = "sum: note";
  note.compute = [&meeting, ticket] {
    meeting.arrived.push_back(ticket);
    wake_waiting_operations();
  };
  EXPECT_EQ(enqueue_operation(stream, note), cudaSuccess);
  EXPECT_EQ(enqueue_operation(stream, leave), cudaSuccess);
}

TEST_F(RuntimeLibrary, RanksInThreadsWaitForEachOther) {
  constexpr size_t kRanks = 4;
  for (int s = 1; s <= kSeeds; ++s) {
    seed(uint64_t(s));
    Meeting meeting;
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&meeting, rank] {
        cudaStream_t stream = new_stream();
        int* value = device_ints({0});
        EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
        EXPECT_EQ(launch_store(stream, value, int(rank) + 1), cudaSuccess);
        take_part(meeting, kRanks, stream, value);
        EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        EXPECT_EQ(read_ints(value, 1)[0], 10);
        EXPECT_EQ(cudaFree(value), cudaSuccess);
        EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(RuntimeLibrary, RankThatNeverComesIsADeadlock) {
  set_wait_limit(0.05);
  Meeting meeting;
  cudaStream_t stream = new_stream();
  int* value = device_ints({0});
  EMU_OK(cudaDeviceSynchronize());
  take_part(meeting, 2, stream, value);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);  // a query never waits
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchTimeout);
  const Report report = take_report();
  EXPECT_EQ(report.fault, Fault::kDeadlock);
  EXPECT_NE(report.text.find("sum: leave"), std::string::npos) << report.text;
  set_wait_limit(kWaitLimit);
  EMU_OK(cudaStreamDestroy(stream));
  EMU_OK(cudaFree(value));
}

TEST_F(RuntimeLibrary, PlannedFailuresOfLibrariesCarryTheirCodes) {
  fail_next("ncclAllReduce", 2, 7);
  int code = 0;
  EXPECT_FALSE(planned_failure("ncclAllReduce", &code));
  EXPECT_FALSE(planned_failure("ncclReduce", &code));
  EXPECT_TRUE(planned_failure("ncclAllReduce", &code));
  EXPECT_EQ(code, 7);
  EXPECT_FALSE(planned_failure("ncclAllReduce", &code));
}
}  // namespace
}  // namespace emu::testing
