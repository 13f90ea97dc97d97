// The number of checkpoints that a run adds, and when the disk is reported as too small for them.
#include "train/disk_need.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

Config config_of(int64_t steps, int64_t interval, int64_t keep) {
  Config config;
  config.save = "run";
  config.train_iters = steps, config.save_interval = interval, config.keep_latest_k = keep;
  return config;
}

TEST(DiskNeed, CountsEveryRemainingSave) {
  EXPECT_EQ(checkpoints_to_add(config_of(25, 5, 0), {}), 5);
  EXPECT_EQ(checkpoints_to_add(config_of(27, 5, 0), {}), 6) << "and the end";
  EXPECT_EQ(checkpoints_to_add(config_of(27, 0, 0), {}), 1);
  EXPECT_EQ(checkpoints_to_add(config_of(25, 5, 0), {.step = 10, .existing = 2}), 3);
  EXPECT_EQ(checkpoints_to_add(config_of(25, 5, 0), {.step = 12}), 3);
  EXPECT_EQ(checkpoints_to_add(config_of(25, 5, 0), {.step = 25}), 0);
}

TEST(DiskNeed, CountsTheNewestWhileTheNextIsWritten) {
  EXPECT_EQ(checkpoints_to_add(config_of(25, 5, 1), {}), 2);
  EXPECT_EQ(checkpoints_to_add(config_of(25, 5, 1), {.step = 5, .existing = 1}), 1);
  EXPECT_EQ(checkpoints_to_add(config_of(25, 5, 1), {.step = 10, .existing = 2}), 0) << "one of these goes";
  EXPECT_EQ(checkpoints_to_add(config_of(25, 5, 3), {}), 3);
  EXPECT_EQ(checkpoints_to_add(config_of(5, 5, 3), {}), 1);
}

TEST(DiskNeed, IsReportedWithItsRemedy) {
  DiskAtStart at{.checkpoint_bytes = 1000, .free_bytes = 5000};
  EXPECT_EQ(lack_of_disk(config_of(25, 5, 0), at), "");
  at.free_bytes = 4999;
  const std::string all = lack_of_disk(config_of(25, 5, 0), at);
  for (const char* part : {"run", "5 checkpoints", "checkpoint.keep_latest_k", "save_interval"})
    EXPECT_NE(all.find(part), std::string::npos) << all;
  EXPECT_EQ(lack_of_disk(config_of(25, 5, 1), at), "");
  at.free_bytes = 1999;
  EXPECT_NE(lack_of_disk(config_of(25, 5, 1), at).find("2 checkpoints"), std::string::npos);
}

}  // namespace
}  // namespace athanor
