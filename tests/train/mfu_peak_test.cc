// A run keeps one peak for MFU, or the log says why it changed.
#include "perf/flops.h"

#include <gtest/gtest.h>

#include "train/snapshot.h"

namespace athanor {
namespace {

TEST(MfuPeak, StaysOnTheSameDevice) {
  std::string told;
  for (const double measured : {90.0, 100.0, 100.9}) {
    EXPECT_EQ(settled_peak({measured, "cpu"}, {100, "cpu"}, &told).flops, 100);
    EXPECT_EQ(told, "");
  }
}

TEST(MfuPeak, ChangeIsExplained) {
  std::string told;
  EXPECT_EQ(settled_peak({2e12, "cpu"}, {1e12, "cpu"}, &told).flops, 2e12);
  EXPECT_EQ(told, "MFU refers to 2.00TFLOP/s from here on, before to 1.00TFLOP/s: cpu is faster than was seen");
  EXPECT_EQ(settled_peak({5e11, "small"}, {1e12, "large"}, &told).of, "small");
  EXPECT_NE(told.find("this is small, it was large"), std::string::npos) << told;
  EXPECT_EQ(settled_peak({5e11, "small"}, {}, &told).flops, 5e11);
  EXPECT_NE(told.find("does not say"), std::string::npos) << told;
}

TEST(MfuPeak, IsStoredInTheCheckpoint) {
  RunState state;
  state.micro_batch_size = 1;
  EXPECT_EQ(state_json(state).find("peak"), std::string::npos) << "none where the configuration has it";
  EXPECT_EQ(parse_state(state_json(state), "here").peak.flops, 0);
  state.peak = {1234567.890123, "a device"};
  const MfuPeak read = parse_state(state_json(state), "here").peak;
  EXPECT_EQ(read.flops, state.peak.flops);
  EXPECT_EQ(read.of, "a device");
}

}  // namespace
}  // namespace athanor
