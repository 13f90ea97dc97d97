// The CPU device's memory and the backend's options.
#include "cpu/cpu_device.h"

#include <gtest/gtest.h>

#include <cstring>

#include "cpu/make_cpu.h"
#include "tests/expect_error.h"

namespace athanor {
namespace {

TEST(CpuDevice, MemoryIsAlignedWritableAndCounted) {
  CpuDevice device(2);
  for (size_t bytes : {size_t(1), size_t(4096), size_t(5u << 20)}) {
    char* p = static_cast<char*>(device.allocate(bytes, Mem::device));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 4096, 0u);
    EXPECT_EQ(device.allocated(), bytes);
    std::memset(p, 1, bytes);
    device.release(p, bytes, Mem::device);
    EXPECT_EQ(device.allocated(), 0u);
  }
  void* nothing = device.allocate(0, Mem::host);
  EXPECT_NE(nothing, nullptr);
  device.release(nothing, 0, Mem::host);
  device.release(nullptr, 0, Mem::host);
}

TEST(CpuDevice, LimitCountsAllAllocations) {
  CpuDevice device(1, 10000);
  EXPECT_EQ(device.capacity(Mem::device), 10000u);
  void* first = device.allocate(6000, Mem::device);
  const std::string message = error_of([&] { device.allocate(4001, Mem::pinned); });
  EXPECT_NE(message.find("4001 bytes were requested"), std::string::npos) << message;
  EXPECT_NE(message.find("6000 of 10000"), std::string::npos) << message;
  EXPECT_NE(error_of([&] { device.allocate(SIZE_MAX, Mem::device); }).find("bytes were requested"), std::string::npos);
  EXPECT_EQ(device.allocated(), 6000u);
  void* second = device.allocate(4000, Mem::host);
  device.release(second, 4000, Mem::host);
  device.release(first, 6000, Mem::device);
  EXPECT_EQ(device.allocated(), 0u);
}

TEST(CpuDevice, CapacityDefaultsToTheMemoryOfTheMachine) {
  CpuDevice device(1);
  EXPECT_GT(device.capacity(Mem::device), size_t(64) << 20);
  EXPECT_NE(error_of([&] { device.allocate(device.capacity(Mem::device) + 1, Mem::device); }).find("cpu memory"),
            std::string::npos);
}

TEST(CpuDevice, CopiesAndStreamsAreSynchronous) {
  CpuDevice device(1);
  char from[] = "abcdef", to[sizeof from] = {};
  device.copy(to, from, sizeof from, Stream::copy);
  EXPECT_STREQ(to, from);
  device.copy(from + 1, from, 3, Stream::copy);  // may overlap
  EXPECT_STREQ(from, "aabcef");
  device.copy(nullptr, nullptr, 0, Stream::compute);
  const auto event = device.record(Stream::copy);
  device.wait(Stream::compute, *event);
  device.sync();
}

TEST(MakeCpu, BuildsABackendThatComputes) {
  CpuBackend cpu = make_cpu({.threads = 3});
  EXPECT_NE(cpu.description.find("3 threads"), std::string::npos) << cpu.description;
  float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8}, d[4];
  Gemm op{.d = {d, DType::f32, {2, 2}}, .a = {a, DType::f32, {2, 2}}, .b = {b, DType::f32, {2, 2}}, .bias = {}};
  std::vector<char> scratch(cpu.ops->scratch(op));
  cpu.ops->run(op, scratch.data());
  EXPECT_EQ(d[0], 19);
  EXPECT_EQ(d[1], 22);
  EXPECT_EQ(d[2], 43);
  EXPECT_EQ(d[3], 50);
  EXPECT_NE(make_cpu({.threads = 1}).description.find("1 thread,"), std::string::npos);
}

TEST(MakeCpu, RefusesBadOptions) {
  EXPECT_NE(error_of([] { make_cpu({.threads = -1}); }).find("threads must be 0 (all) or more, got -1"),
            std::string::npos);
}

}  // namespace
}  // namespace athanor
