// Tests for scripts/gpu/programs.py (tests/system/test_gpu_faults.py): one leaves the emulated GPU unusable, and one
// hangs on request. Uses the main() of gpu_main.cc.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "emulator/runtime/control.h"

namespace {

TEST(Unusable, Before) { EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess); }
TEST(Unusable, Planted) {
  emu::fail_next("cudaDeviceSynchronize", 1, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
}
TEST(Unusable, After) { EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess); }
TEST(Hanging, IfAsked) {
  if (getenv("HANG")) pause();
}
TEST(Hanging, After) {}

}  // namespace
