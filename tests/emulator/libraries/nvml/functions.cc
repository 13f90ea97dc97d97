// The functions of NVML that the table points at; see fake_nvml.h.
#include <algorithm>
#include <cstdio>

#include "fake_nvml.h"

// NVML's device handles are opaque; these are the addresses of the GPUs' sensors.
namespace emu::fakes {

using namespace athanor::nvml;

// A struct, so that FakeNvml can make it a friend.
struct NvmlFunctions {
  static FakeNvml& fake() { return Installed<FakeNvml>::get(); }

  // Everything that can be wrong before a value is read. The lock is held.
  static nvmlReturn_t ready(const char* function) {
    FakeNvml& f = fake();
    int code = 0;
    if (f.machine_.planned_failure(function, &code)) {
      return f.refuse(static_cast<nvmlReturn_t>(code), text(function, ": planned failure"));
    }
    if (f.inits_ == 0) return f.refuse(NVML_ERROR_UNINITIALIZED, text(function, ": nvmlInit was not called"));
    return NVML_SUCCESS;
  }

  static nvmlDevice_t handle_of(GpuSensors& gpu) { return reinterpret_cast<nvmlDevice_t>(&gpu); }
  // Calls read(gpu) if the query is possible.
  template <class Read>
  static nvmlReturn_t query(const char* function, nvmlDevice_t device, const void* out, Read&& read) {
    FakeNvml& f = fake();
    std::lock_guard lock(f.mutex_);
    if (nvmlReturn_t code = ready(function); code != NVML_SUCCESS) return code;
    const auto gpu_of_device = std::ranges::find(f.gpus_, device, [](GpuSensors& gpu) { return handle_of(gpu); });
    if (gpu_of_device == f.gpus_.end() || out == nullptr) {
      return f.refuse(NVML_ERROR_INVALID_ARGUMENT, text(function, ": no such device, or the result pointer is NULL"));
    }
    const GpuSensors& gpu = *gpu_of_device;
    if (gpu.lost) return f.refuse(NVML_ERROR_GPU_IS_LOST, text(function, ": the GPU is lost"));
    if (gpu.unsupported.count(function)) return f.refuse(NVML_ERROR_NOT_SUPPORTED, text(function, ": not supported"));
    return read(gpu);
  }
  template <class T>
  static nvmlReturn_t number(const char* function, nvmlDevice_t device, T* out, T GpuSensors::*field) {
    return query(function, device, out, [&](const GpuSensors& gpu) {
      *out = gpu.*field;
      return NVML_SUCCESS;
    });
  }
  static nvmlReturn_t init() {
    FakeNvml& f = fake();
    std::lock_guard lock(f.mutex_);
    int code = 0;
    if (f.machine_.planned_failure("nvmlInit_v2", &code)) {
      return f.refuse(static_cast<nvmlReturn_t>(code), "nvmlInit_v2: planned failure");
    }
    ++f.inits_;
    return NVML_SUCCESS;
  }
  static nvmlReturn_t shutdown() {
    FakeNvml& f = fake();
    std::lock_guard lock(f.mutex_);
    if (nvmlReturn_t code = ready("nvmlShutdown"); code != NVML_SUCCESS) return code;
    --f.inits_;
    return NVML_SUCCESS;
  }
  static const char* error_string(nvmlReturn_t code) {
    switch (code) {
      case NVML_SUCCESS:
        return "The operation was successful";
      case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
      case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
      case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
      case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
      case NVML_ERROR_NOT_FOUND:
        return "Not Found";
      case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
      case NVML_ERROR_TIMEOUT:
        return "Timeout";
      case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
      case NVML_ERROR_UNKNOWN:
        break;
    }
    return "Unknown Error";
  }
  static nvmlReturn_t by_bus(const char* bus, nvmlDevice_t* out) {
    const char* name = "nvmlDeviceGetHandleByPciBusId_v2";
    FakeNvml& f = fake();
    std::lock_guard lock(f.mutex_);
    if (nvmlReturn_t code = ready(name); code != NVML_SUCCESS) return code;
    if (bus == nullptr || out == nullptr) return f.refuse(NVML_ERROR_INVALID_ARGUMENT, text(name, ": NULL"));
    unsigned domain, number, device, function;
    if (std::sscanf(bus, "%x:%x:%x.%x", &domain, &number, &device, &function) != 4) {
      return f.refuse(NVML_ERROR_INVALID_ARGUMENT, text(name, ": \"", bus, "\" is no PCI address"));
    }
    for (size_t i = 0; i < f.gpus_.size(); ++i) {
      if (domain != 0 || device != 0 || function != 0 || f.gpus_[i].bus != number) continue;
      *out = handle_of(f.gpus_[i]);
      return NVML_SUCCESS;
    }
    return f.refuse(NVML_ERROR_NOT_FOUND, text(name, ": no GPU at ", bus));
  }
  static nvmlReturn_t power(nvmlDevice_t device, unsigned* out) {
    return number("nvmlDeviceGetPowerUsage", device, out, &GpuSensors::milliwatts);
  }
  static nvmlReturn_t temperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned* out) {
    const char* function = "nvmlDeviceGetTemperature";
    if (sensor != NVML_TEMPERATURE_GPU) return fake().refuse(NVML_ERROR_INVALID_ARGUMENT, text(function, ": sensor"));
    return number(function, device, out, &GpuSensors::celsius);
  }
  static nvmlReturn_t clock(nvmlDevice_t device, nvmlClockType_t clock, unsigned* out) {
    const char* function = "nvmlDeviceGetClockInfo";
    if (clock == NVML_CLOCK_SM) return number(function, device, out, &GpuSensors::sm_mhz);
    if (clock == NVML_CLOCK_MEM) return number(function, device, out, &GpuSensors::memory_mhz);
    return fake().refuse(NVML_ERROR_INVALID_ARGUMENT, text(function, ": clock ", int(clock)));
  }
  static nvmlReturn_t reasons(nvmlDevice_t device, unsigned long long* out) {
    return number("nvmlDeviceGetCurrentClocksEventReasons", device, out, &GpuSensors::clock_reasons);
  }
};

FakeNvml::FakeNvml(Machine machine, std::vector<GpuSensors> gpus)
    : machine_(std::move(machine)), gpus_(std::move(gpus)), installed_(this) {}

void FakeNvml::set(size_t gpu, const GpuSensors& sensors) {
  std::lock_guard lock(mutex_);
  gpus_.at(gpu) = sensors;
}

int FakeNvml::balance() const {
  std::lock_guard lock(mutex_);
  return inits_;
}

nvmlReturn_t FakeNvml::refuse(nvmlReturn_t code, const std::string& why) {
  refusals_.add(why);
  return code;
}

athanor::NvmlTable FakeNvml::table() const {
  using F = NvmlFunctions;
  return {.nvmlInit_v2 = F::init,
          .nvmlShutdown = F::shutdown,
          .nvmlErrorString = F::error_string,
          .nvmlDeviceGetHandleByPciBusId_v2 = F::by_bus,
          .nvmlDeviceGetPowerUsage = F::power,
          .nvmlDeviceGetTemperature = F::temperature,
          .nvmlDeviceGetClockInfo = F::clock,
          .nvmlDeviceGetCurrentClocksEventReasons = F::reasons};
}

}  // namespace emu::fakes
