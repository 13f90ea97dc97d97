// Tests of which one leaves the emulated GPU unusable, and one hangs where it is asked to: for what
// scripts/gpu/programs.py makes of such a program (tests/system/test_gpu_faults.py). With the main() of gpu_main.cc.
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
