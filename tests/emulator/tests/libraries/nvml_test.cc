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
  FakeNvml fake{machine.machine(), {GpuSensors{}, GpuSensors{.name = "NVIDIA A100-SXM4-80GB", .bus = 0x3b}}};
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
  GpuSensors sensors{.name = "NVIDIA A100-SXM4-80GB",
                     .bus = 0x3b,
                     .milliwatts = 123456,
                     .power_limit = 400000,
                     .millijoules = 5000,
                     .celsius = 77,
                     .sm_mhz = 1410,
                     .max_sm_mhz = 1500,
                     .clock_reasons = kClocksSwPowerCap | kClocksHwThermal,
                     .total_bytes = 1000,
                     .used_bytes = 300};
  fake.set(1, sensors);
  unsigned value = 0, count = 0;
  unsigned long long wide = 0;
  EXPECT_EQ(nvml.nvmlDeviceGetCount_v2(&count), NVML_SUCCESS);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(nvml.nvmlDeviceGetPowerUsage(device, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 123456u);
  EXPECT_EQ(nvml.nvmlDeviceGetEnforcedPowerLimit(device, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 400000u);
  EXPECT_EQ(nvml.nvmlDeviceGetTotalEnergyConsumption(device, &wide), NVML_SUCCESS);
  EXPECT_EQ(wide, 5000u);
  EXPECT_EQ(nvml.nvmlDeviceGetTemperature(device, NVML_TEMPERATURE_GPU, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 77u);
  EXPECT_EQ(nvml.nvmlDeviceGetClockInfo(device, NVML_CLOCK_SM, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 1410u);
  EXPECT_EQ(nvml.nvmlDeviceGetMaxClockInfo(device, NVML_CLOCK_SM, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 1500u);
  EXPECT_EQ(nvml.nvmlDeviceGetCurrentClocksEventReasons(device, &wide), NVML_SUCCESS);
  EXPECT_EQ(wide, kClocksSwPowerCap | kClocksHwThermal);
  nvmlMemory_t memory;
  EXPECT_EQ(nvml.nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.free, 700u);
  nvmlPciInfo_t pci;
  EXPECT_EQ(nvml.nvmlDeviceGetPciInfo_v3(device, &pci), NVML_SUCCESS);
  EXPECT_STREQ(pci.busId, "00000000:3B:00.0");
  EXPECT_STREQ(pci.busIdLegacy, "0000:3B:00.0");
  char name[64];
  EXPECT_EQ(nvml.nvmlDeviceGetName(device, name, sizeof name), NVML_SUCCESS);
  EXPECT_STREQ(name, "NVIDIA A100-SXM4-80GB");
  EXPECT_EQ(nvml.nvmlDeviceGetName(device, name, 4), NVML_ERROR_INSUFFICIENT_SIZE);
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
  EXPECT_EQ(nvml.nvmlDeviceGetHandleByIndex_v2(2, &device), NVML_ERROR_INVALID_ARGUMENT);
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
  machine.fail_next("nvmlDeviceGetCount_v2", 1, NVML_ERROR_UNKNOWN);
  EXPECT_EQ(nvml.nvmlDeviceGetCount_v2(&value), NVML_ERROR_UNKNOWN);
}

}  // namespace
}  // namespace emu::fakes
