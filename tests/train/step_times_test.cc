// Times of a step enter its record completely, and idle time of the device is waiting for data.
#include "train/step_times.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

TEST(StepTimes, PhasesSumToTheStep) {
  PhaseTimes times;
  for (size_t i = 0; i < kPhases; ++i) times.ns[i] = int64_t(1'000'000 * (i + 1));
  StepMetrics m;
  set_times(m, times);
  EXPECT_DOUBLE_EQ(m.step_ms, 36);
  EXPECT_DOUBLE_EQ(m.other_ms, 6 + 7 + 8) << "checkpoint and evaluation are other";
  EXPECT_NEAR(m.data_ms + m.forward_ms + m.backward_ms + m.communication_ms + m.optimizer_ms + m.other_ms, m.step_ms,
              1e-9);
}

TEST(StepTimes, DeviceIdleTimeCountsAsDataWaitWhileTheHostWaits) {
  PhaseTimes device, host;
  device[Phase::forward] = 5, device[Phase::other] = 4, host[Phase::data] = 3;
  EXPECT_EQ(step_times(device, host)[Phase::data], 3);
  EXPECT_EQ(step_times(device, host)[Phase::other], 1);
  host[Phase::data] = 9;
  EXPECT_EQ(step_times(device, host)[Phase::data], 4);
  EXPECT_EQ(step_times(device, host).total(), device.total());
}

}  // namespace
}  // namespace athanor
