// The part of NVML's interface that the program uses, from the NVML API reference, r580. Declared here because nvml.h
// is in an optional development package of the toolkit, while the library comes with every driver. In its own
// namespace, so that a file may include nvml.h too.
#pragma once

namespace athanor::nvml {

extern "C" {

enum nvmlReturn_t {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_ERROR_UNKNOWN = 999,
};

struct nvmlDevice_st;
using nvmlDevice_t = nvmlDevice_st*;

enum nvmlTemperatureSensors_t { NVML_TEMPERATURE_GPU = 0 };
enum nvmlClockType_t { NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2 };

// Bits of nvmlDeviceGetCurrentClocksEventReasons.
inline constexpr unsigned long long kClocksGpuIdle = 0x1, kClocksApplicationsSetting = 0x2, kClocksSwPowerCap = 0x4,
                                    kClocksHwSlowdown = 0x8, kClocksSyncBoost = 0x10, kClocksSwThermal = 0x20,
                                    kClocksHwThermal = 0x40, kClocksHwPowerBrake = 0x80;

nvmlReturn_t nvmlInit_v2();
nvmlReturn_t nvmlShutdown();
const char* nvmlErrorString(nvmlReturn_t result);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, nvmlDevice_t* device);
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* milliwatts);
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int* celsius);
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t clock, unsigned int* megahertz);
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long* reasons);

}  // extern "C"

}  // namespace athanor::nvml
