// The fake NVML reports what a test sets and refuses what the real one's documentation does not allow.
#include <gtest/gtest.h>

#include "libraries/nvml/fake_nvml.h"
#include "libraries/simple_machine.h"

namespace emu::fakes {
namespace {

using namespace athanor::nvml;

class Nvml : public testing::Test {
 protected:
  SimpleMachine machine{2};
  FakeNvml fake{machine.machine(), {GpuSensors{}, GpuSensors{.bus = 0x3b}}};
  athanor::NvmlTable nvml = fake.table();
  nvmlDevice_t device = nullptr;

  void start() {
    ASSERT_EQ(nvml.nvmlInit_v2(), NVML_SUCCESS);
    ASSERT_EQ(nvml.nvmlDeviceGetHandleByPciBusId_v2("00000000:3B:00.0", &device), NVML_SUCCESS);
  }
};

TEST_F(Nvml, EveryFunctionOfTheTableIsThere) {
  for_each_function(nvml, [](const char* name, auto function) { EXPECT_NE(function, nullptr) << name; });
}

TEST_F(Nvml, ReportsWhatTheTestSets) {
  start();
  fake.set(1, {.bus = 0x3b,
               .milliwatts = 123456,
               .celsius = 77,
               .sm_mhz = 1410,
               .memory_mhz = 1593,
               .clock_reasons = kClocksSwPowerCap | kClocksHwThermal});
  unsigned value = 0;
  unsigned long long reasons = 0;
  EXPECT_EQ(nvml.nvmlDeviceGetPowerUsage(device, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 123456u);
  EXPECT_EQ(nvml.nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 77u);
  EXPECT_EQ(nvml.nvmlDeviceGetClockInfo(device, NVML_CLOCK_SM, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 1410u);
  EXPECT_EQ(nvml.nvmlDeviceGetClockInfo(device, NVML_CLOCK_MEM, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 1593u);
  EXPECT_EQ(nvml.nvmlDeviceGetCurrentClocksEventReasons(device, &reasons), NVML_SUCCESS);
  EXPECT_EQ(reasons, kClocksSwPowerCap | kClocksHwThermal);
  EXPECT_EQ(nvml.nvmlShutdown(), NVML_SUCCESS);
  EXPECT_EQ(fake.balance(), 0);
}

TEST_F(Nvml, WrongCalls) {
  unsigned value;
  EXPECT_EQ(nvml.nvmlDeviceGetPowerUsage(device, &value), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvml.nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
  start();
  EXPECT_EQ(nvml.nvmlDeviceGetPowerUsage(nullptr, &value), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvml.nvmlDeviceGetPowerUsage(device, nullptr), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvml.nvmlDeviceGetClockInfo(device, static_cast<nvmlClockType_t>(9), &value), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvml.nvmlDeviceGetHandleByPciBusId_v2("00000000:77:00.0", &device), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(nvml.nvmlDeviceGetHandleByPciBusId_v2("not an address", &device), NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(Nvml, LostGpusMissingSensorsAndPlannedFailures) {
  start();
  unsigned value;
  fake.set(1, {.bus = 0x3b, .unsupported = {"nvmlDeviceGetPowerUsage"}});
  EXPECT_EQ(nvml.nvmlDeviceGetPowerUsage(device, &value), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvml.nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &value), NVML_SUCCESS);
  fake.set(1, {.bus = 0x3b, .lost = true});
  EXPECT_EQ(nvml.nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &value), NVML_ERROR_GPU_IS_LOST);
  machine.fail_next("nvmlDeviceGetPowerUsage", 1, NVML_ERROR_UNKNOWN);
  EXPECT_EQ(nvml.nvmlDeviceGetPowerUsage(device, &value), NVML_ERROR_UNKNOWN);
}

}  // namespace
}  // namespace emu::fakes
