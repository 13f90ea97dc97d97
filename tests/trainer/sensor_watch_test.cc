// The sensor thread has a reading at once, renews it periodically, and stops without waiting for its next reading.
#include "train/sensor_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

namespace athanor {
namespace {

struct Counting final : Sensors {
  SensorReading read() override { return {.watts = double(++reads)}; }
  std::atomic<int> reads = 0;
};

TEST(SensorWatch, ReadsAtOnceAndPeriodically) {
  Counting sensors;
  const auto begin = std::chrono::steady_clock::now();
  {
    const SensorWatch watch(sensors);
    ASSERT_TRUE(watch.latest().watts.has_value());
    EXPECT_FALSE(watch.latest().celsius.has_value());
    while (*watch.latest().watts < 2 && std::chrono::steady_clock::now() - begin < std::chrono::seconds(60))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_GE(*watch.latest().watts, 2);
  }
}

TEST(SensorWatch, ReportsOnlyUnhealthyThrottleReasons) {
  EXPECT_EQ(throttle_text(0x1 | 0x2 | 0x4 | 0x10 | 0x100), "");
  EXPECT_EQ(throttle_text(0x8), "hardware slowdown");
  EXPECT_EQ(throttle_text(0x20 | 0x80 | 0x4), "heat (by the driver), power brake from outside");
}

}  // namespace
}  // namespace athanor
