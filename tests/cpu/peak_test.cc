// The peak FLOP/s that MFU is a fraction of.
#include "cpu/peak.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "cpu/cores.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

// Repeated measurements may differ: the machine's clock may change between them.
TEST(Peak, ImpliesAPlausibleClock) {
  const double clock = peak_flops(1, DType::f32) / flops_per_cycle(isa(), DType::f32);
  EXPECT_GT(clock, 0.3e9);
  EXPECT_LT(clock, 10e9);
}

TEST(Peak, DependsOnCoresAndNotOnThreads) {
  const int all = physical_cores(1 << 20);
  EXPECT_GE(all, 1);
  EXPECT_EQ(physical_cores(1), 1);
  EXPECT_EQ(physical_cores(all + 7), all);
}

TEST(Peak, TwoThreadsOfACoreAreOneCore) {
  const testing::TempDir dir;
  for (int cpu = 0; cpu < 256; ++cpu) {
    const std::string folder = cat(dir.path(), "/cpu", cpu, "/topology");
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/thread_siblings_list") << "0-1023\n";
  }
  EXPECT_EQ(physical_cores(8, dir.path()), 1);
}

}  // namespace
}  // namespace athanor
