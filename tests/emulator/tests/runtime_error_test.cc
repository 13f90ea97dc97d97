// Errors of the fake runtime: planned ones, sticky ones, the last one of each thread, and refusals by name.
#include <thread>

#include "emulator/tests/runtime_support.h"

namespace emu::testing {
namespace {
using RuntimeError = RuntimeTest;

TEST_F(RuntimeError, PlannedFailuresHitTheNthCall) {
  void* memory[3] = {};
  fail_next("cudaMalloc", 2, cudaErrorMemoryAllocation);
  EMU_OK(cudaMalloc(&memory[0], 16));
  EXPECT_EQ(cudaMalloc(&memory[1], 16), cudaErrorMemoryAllocation);
  EXPECT_EQ(memory[1], nullptr);  // nothing else of the call happened
  EMU_OK(cudaMalloc(&memory[2], 16));
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EMU_OK(cudaFree(memory[0]));
  EMU_OK(cudaFree(memory[2]));
}

TEST_F(RuntimeError, AnyCallCanBePlannedToFail) {
  int* memory = device_ints({1});
  cudaStream_t stream = new_stream();
  cudaEvent_t event = new_event();
  int number = 0;
  const std::vector<std::pair<const char*, std::function<cudaError_t()>>> calls{
      {"cudaFree", [&] { return cudaFree(memory); }},
      {"cudaMemcpyAsync", [&] { return cudaMemcpyAsync(&number, memory, 4, cudaMemcpyDeviceToHost, stream); }},
      {"cudaMemcpy", [&] { return cudaMemcpy(&number, memory, 4, cudaMemcpyDeviceToHost); }},
      {"cudaMemsetAsync", [&] { return cudaMemsetAsync(memory, 0, 4, stream); }},
      {"cudaLaunchKernelExC", [&] { return launch_store(stream, memory, 1); }},
      {"cudaStreamSynchronize", [&] { return cudaStreamSynchronize(stream); }},
      {"cudaStreamWaitEvent", [&] { return cudaStreamWaitEvent(stream, event, 0); }},
      {"cudaEventRecord", [&] { return cudaEventRecord(event, stream); }},
      {"cudaDeviceSynchronize", [&] { return cudaDeviceSynchronize(); }},
      {"cudaSetDevice", [&] { return cudaSetDevice(0); }},
      {"cudaGetDeviceCount", [&] { return cudaGetDeviceCount(&number); }},
      {"cudaStreamBeginCapture", [&] { return cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal); }},
  };
  for (const auto& [name, call] : calls) {
    fail_next(name, 1, cudaErrorNotSupported);
    EXPECT_EQ(call(), cudaErrorNotSupported) << name;
  }
  EXPECT_EQ(cudaGetLastError(), cudaErrorNotSupported);
  EMU_OK(cudaEventDestroy(event));
  EMU_OK(cudaStreamDestroy(stream));
  EMU_OK(cudaFree(memory));
}

TEST_F(RuntimeError, FaultsOfKernelsAreSticky) {
  int* memory = device_ints({1});
  EMU_OK(launch_out_of_bounds(memory + 1));  // the launch itself succeeds
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);  // not reset
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 16), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaFree(memory), cudaErrorIllegalAddress);
  EXPECT_NE(explanation().find("store_through_access"), std::string::npos) << explanation();
  int count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);  // needs no context
  const Report report = take_report();
  EXPECT_EQ(report.fault, Fault::kBounds);
  EXPECT_NE(report.text.find("thread (0,0,0)"), std::string::npos) << report.text;
  EMU_OK(cudaFree(memory));  // a new life
}

TEST_F(RuntimeError, PlannedStickyErrorsStick) {
  fail_next("cudaStreamSynchronize", 1, cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaGetLastError(), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaGetLastError(), cudaErrorECCUncorrectable);
  EXPECT_EQ(take_report().fault, Fault::kNone);
}

TEST_F(RuntimeError, LastErrorIsOfTheThread) {
  void* memory = nullptr;
  fail_next("cudaMalloc", 1, cudaErrorMemoryAllocation);
  (void)cudaMalloc(&memory, 16);
  std::thread([] { EXPECT_EQ(cudaGetLastError(), cudaSuccess); }).join();
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
}

TEST_F(RuntimeError, Texts) {
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
  EXPECT_STREQ(cudaGetErrorString(cudaSuccess), "no error");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorIllegalAddress), "an illegal memory access was encountered");
  EXPECT_STREQ(cudaGetErrorString(cudaError_t(12345)), "unrecognized error code");
}

TEST_F(RuntimeError, CallsFromManyThreadsAreSafe) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      cudaStream_t stream = new_stream();
      int* memory = device_ints({0, 0});
      (void)cudaStreamSynchronize(nullptr);
      for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(launch_store(stream, memory, t), cudaSuccess);
        EXPECT_EQ(launch_add(stream, memory + 1, memory, 1, i), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      }
      EXPECT_EQ(read_ints(memory, 2), (std::vector<int>{t, t + 49}));
      EXPECT_EQ(cudaFree(memory), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
}
}  // namespace
}  // namespace emu::testing
