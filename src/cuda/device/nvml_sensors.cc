#include "cuda/nvml_sensors.h"

#include "base/error.h"
#include "base/log.h"
#include "cuda/check.h"
#include "cuda/libraries/open.h"

namespace athanor::cuda {
namespace {

using namespace nvml;

class NvmlSensors final : public Sensors {
 public:
  // Finds the GPU by its PCI address, since NVML's indices ignore CUDA_VISIBLE_DEVICES.
  NvmlSensors(const NvmlTable& call, const char* bus) : call_(call) {
    require(call_.nvmlInit_v2(), "nvmlInit");
    if (const nvmlReturn_t result = call_.nvmlDeviceGetHandleByPciBusId_v2(bus, &gpu_); result != NVML_SUCCESS) {
      (void)call_.nvmlShutdown();
      require(result, bus);
    }
  }
  ~NvmlSensors() override { (void)call_.nvmlShutdown(); }
  NvmlSensors(const NvmlSensors&) = delete;
  NvmlSensors& operator=(const NvmlSensors&) = delete;

  SensorReading read() override {
    SensorReading r;
    unsigned value = 0;
    const auto got = [&](nvmlReturn_t result) { return result == NVML_SUCCESS; };
    if (got(call_.nvmlDeviceGetPowerUsage(gpu_, &value))) r.watts = value * 1e-3;
    if (got(call_.nvmlDeviceGetTemperature(gpu_, NVML_TEMPERATURE_GPU, &value))) r.celsius = value;
    if (got(call_.nvmlDeviceGetClockInfo(gpu_, NVML_CLOCK_SM, &value))) r.sm_mhz = value;
    if (got(call_.nvmlDeviceGetClockInfo(gpu_, NVML_CLOCK_MEM, &value))) r.memory_mhz = value;
    unsigned long long reasons = 0;
    if (got(call_.nvmlDeviceGetCurrentClocksEventReasons(gpu_, &reasons))) r.throttle_reasons = int64_t(reasons);
    return r;
  }

 private:
  void require(nvmlReturn_t result, const char* what) const {
    if (result != NVML_SUCCESS) throw Error(cat("NVML: ", what, ": ", call_.nvmlErrorString(result)));
  }

  NvmlTable call_;
  nvmlDevice_t gpu_ = nullptr;
};
static_assert(kHwSlowdown == kClocksHwSlowdown && kSwThermal == kClocksSwThermal && kHwThermal == kClocksHwThermal &&
              kHwPowerBrake == kClocksHwPowerBrake);

}  // namespace

std::unique_ptr<Sensors> nvml_sensors(int index, const SearchPlaces& places) {
  char bus[32] = "";
  CUDA_CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, index));
  try {
    return std::make_unique<NvmlSensors>(open_nvml(places).call, bus);
  } catch (const Error& error) {
    log::debug("no power, temperature and clocks of the GPU in the records: ", error.what());
    return nullptr;
  }
}

}  // namespace athanor::cuda
