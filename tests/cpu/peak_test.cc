// The peak that MFU is a fraction of: no product exceeds it, and it does not come and go.
#include "cpu/peak.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

TEST(Peak, IsTheSameEveryTime) {
  double least = 1e30, most = 0;
  for (int i = 0; i < 5; ++i) {
    const double peak = peak_flops(1);
    least = std::min(least, peak);
    most = std::max(most, peak);
  }
  EXPECT_GT(least, 1e9);   // no core is slower,
  EXPECT_LT(most, 64e10);  // and none has 10 GHz
  EXPECT_LT(most / least, 1.25);
}

TEST(Peak, DependsOnTheCoresAndNotOnMoreThreads) {
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
