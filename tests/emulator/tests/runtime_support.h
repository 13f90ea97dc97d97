// What tests of the fake runtime share: a fresh simulated machine per test that must be left without faults and leaks,
// and kernels small enough to see what order they ran in. There is nothing here to run on a real GPU.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "cuda/host/launch_raw.h"
#include "emulator/device/device.h"
#include "emulator/emulator.h"
#include "emulator/runtime/control.h"

namespace emu::testing {

constexpr int kSeeds = 10;

// runtime_kernels.cc: the kernels are compiled like kernels, the tests like host code.
const void* store_kernel();
cudaError_t launch_store(cudaStream_t stream, int* to, int value);
// to[i] = from[i] + value, one block.
cudaError_t launch_add(cudaStream_t stream, int* to, const int* from, int count, int value);
cudaError_t launch_shaped(const LaunchShape& shape, int* to, int value);  // the kernel of launch_store
struct ManyBytes {
  char bytes[40000];
};
cudaError_t launch_many_bytes();
cudaError_t launch_out_of_bounds(int* to);  // an access that every build notices

class RuntimeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    simulate({gpu_h200()});
    seed(1);
  }
  void TearDown() override {
    (void)cudaSetDevice(0);
    const Report report = take_report();
    EXPECT_EQ(report.fault, Fault::kNone) << report.text;
    for (const std::string& leak : leaks()) ADD_FAILURE() << leak;
  }
};

#define EMU_OK(call) ASSERT_EQ(call, cudaSuccess) << emu::explanation()

inline int* device_ints(const std::vector<int>& values) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, values.size() * sizeof(int)), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(memory, values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice), cudaSuccess);
  return static_cast<int*>(memory);
}
inline int* pinned_ints(size_t count, int value = 0) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMallocHost(&memory, count * sizeof(int)), cudaSuccess);
  auto* ints = static_cast<int*>(memory);
  for (size_t i = 0; i < count; ++i) ints[i] = value;
  return ints;
}
inline std::vector<int> read_ints(const int* device, size_t count) {
  std::vector<int> values(count, -1);
  EXPECT_EQ(cudaMemcpy(values.data(), device, count * sizeof(int), cudaMemcpyDeviceToHost), cudaSuccess);
  return values;
}
inline cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}
inline cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, flags), cudaSuccess);
  return event;
}
// The misuse is reported under each of ten schedules. Without instrumented kernels, order is not watched.
inline void expect_found(Fault fault, const std::string& words, const std::function<void()>& misuse,
                         bool needs_checking = false) {
  for (int s = 1; s <= kSeeds; ++s) {
    simulate({gpu_h200()});
    seed(uint64_t(s));
    misuse();
    const Report report = take_report();
    if (needs_checking && !kChecking) continue;
    EXPECT_EQ(report.fault, fault) << "seed " << s << ": " << report.text;
    EXPECT_NE(report.text.find(words), std::string::npos) << "seed " << s << ": " << report.text;
  }
  simulate({gpu_h200()});
}

// The call fails with this code, and the explanation has these words.
inline void expect_refused(cudaError_t got, cudaError_t expected, const std::string& words) {
  EXPECT_EQ(got, expected) << cudaGetErrorString(got) << ", " << explanation();
  EXPECT_NE(explanation().find(words), std::string::npos) << explanation();
  (void)cudaGetLastError();
}
}  // namespace emu::testing
