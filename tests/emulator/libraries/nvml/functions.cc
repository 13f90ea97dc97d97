// The functions of NVML that the table points at; see fake_nvml.h.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "fake_nvml.h"

// NVML's device handles are opaque; these are the addresses of the GPUs' sensors.
namespace emu::fakes {

using namespace athanor::nvml;

// A struct, so that FakeNvml can make it a friend.
struct NvmlFunctions {
  static FakeNvml& fake() { return Installed<FakeNvml>::get(); }

  static std::string bus_id(const GpuSensors& gpu) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "00000000:%02X:00.0", gpu.bus);
    return buffer;
  }

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
  static nvmlReturn_t copy_text(const char* function, const std::string& value, char* out, unsigned length) {
    if (length <= value.size())
      return fake().refuse(NVML_ERROR_INSUFFICIENT_SIZE, text(function, ": buffer too small"));
    std::memcpy(out, value.c_str(), value.size() + 1);
    return NVML_SUCCESS;
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
      case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
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
  static nvmlReturn_t driver_version(char* out, unsigned length) {
    FakeNvml& f = fake();
    std::lock_guard lock(f.mutex_);
    if (nvmlReturn_t code = ready("nvmlSystemGetDriverVersion"); code != NVML_SUCCESS) return code;
    if (out == nullptr) return f.refuse(NVML_ERROR_INVALID_ARGUMENT, "nvmlSystemGetDriverVersion: version is NULL");
    return copy_text("nvmlSystemGetDriverVersion", "580.00 (emulated)", out, length);
  }
  static nvmlReturn_t count(unsigned* out) {
    FakeNvml& f = fake();
    std::lock_guard lock(f.mutex_);
    if (nvmlReturn_t code = ready("nvmlDeviceGetCount_v2"); code != NVML_SUCCESS) return code;
    if (out == nullptr) return f.refuse(NVML_ERROR_INVALID_ARGUMENT, "nvmlDeviceGetCount_v2: count is NULL");
    *out = static_cast<unsigned>(f.gpus_.size());
    return NVML_SUCCESS;
  }
  static nvmlReturn_t by_index(unsigned index, nvmlDevice_t* out) {
    const char* name = "nvmlDeviceGetHandleByIndex_v2";
    FakeNvml& f = fake();
    std::lock_guard lock(f.mutex_);
    if (nvmlReturn_t code = ready(name); code != NVML_SUCCESS) return code;
    if (out == nullptr || index >= f.gpus_.size()) {
      return f.refuse(NVML_ERROR_INVALID_ARGUMENT, text(name, ": index ", index, " of ", f.gpus_.size()));
    }
    *out = handle_of(f.gpus_[index]);
    return NVML_SUCCESS;
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
  static nvmlReturn_t name(nvmlDevice_t device, char* out, unsigned length) {
    return query("nvmlDeviceGetName", device, out,
                 [&](const GpuSensors& gpu) { return copy_text("nvmlDeviceGetName", gpu.name, out, length); });
  }
  static nvmlReturn_t pci(nvmlDevice_t device, nvmlPciInfo_t* out) {
    return query("nvmlDeviceGetPciInfo_v3", device, out, [&](const GpuSensors& gpu) {
      *out = {};
      out->bus = gpu.bus;
      std::string id = bus_id(gpu);
      std::memcpy(out->busId, id.c_str(), id.size() + 1);
      std::memcpy(out->busIdLegacy, id.c_str() + 4, id.size() - 3);  // a domain of four digits
      return NVML_SUCCESS;
    });
  }
  static nvmlReturn_t memory(nvmlDevice_t device, nvmlMemory_t* out) {
    return query("nvmlDeviceGetMemoryInfo", device, out, [&](const GpuSensors& gpu) {
      *out = {.total = gpu.total_bytes, .free = gpu.total_bytes - gpu.used_bytes, .used = gpu.used_bytes};
      return NVML_SUCCESS;
    });
  }
  static nvmlReturn_t power(nvmlDevice_t device, unsigned* out) {
    return number("nvmlDeviceGetPowerUsage", device, out, &GpuSensors::milliwatts);
  }
  static nvmlReturn_t power_limit(nvmlDevice_t device, unsigned* out) {
    return number("nvmlDeviceGetEnforcedPowerLimit", device, out, &GpuSensors::power_limit);
  }
  static nvmlReturn_t energy(nvmlDevice_t device, unsigned long long* out) {
    return number("nvmlDeviceGetTotalEnergyConsumption", device, out, &GpuSensors::millijoules);
  }
  static nvmlReturn_t temperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned* out) {
    const char* function = "nvmlDeviceGetTemperature";
    if (sensor != NVML_TEMPERATURE_GPU) return fake().refuse(NVML_ERROR_INVALID_ARGUMENT, text(function, ": sensor"));
    return number(function, device, out, &GpuSensors::celsius);
  }
  static nvmlReturn_t any_clock(const char* function, nvmlDevice_t device, nvmlClockType_t clock, unsigned* out,
                                bool most) {
    switch (clock) {
      case NVML_CLOCK_GRAPHICS:
        return number(function, device, out, most ? &GpuSensors::max_graphics_mhz : &GpuSensors::graphics_mhz);
      case NVML_CLOCK_SM:
        return number(function, device, out, most ? &GpuSensors::max_sm_mhz : &GpuSensors::sm_mhz);
      case NVML_CLOCK_MEM:
        return number(function, device, out, most ? &GpuSensors::max_memory_mhz : &GpuSensors::memory_mhz);
    }
    return fake().refuse(NVML_ERROR_INVALID_ARGUMENT, text(function, ": clock ", int(clock)));
  }
  static nvmlReturn_t clock(nvmlDevice_t device, nvmlClockType_t which, unsigned* out) {
    return any_clock("nvmlDeviceGetClockInfo", device, which, out, false);
  }
  static nvmlReturn_t max_clock(nvmlDevice_t device, nvmlClockType_t which, unsigned* out) {
    return any_clock("nvmlDeviceGetMaxClockInfo", device, which, out, true);
  }
  static nvmlReturn_t reasons(nvmlDevice_t device, unsigned long long* out) {
    return number("nvmlDeviceGetCurrentClocksEventReasons", device, out, &GpuSensors::clock_reasons);
  }
  static nvmlReturn_t utilization(nvmlDevice_t device, nvmlUtilization_t* out) {
    return query("nvmlDeviceGetUtilizationRates", device, out, [&](const GpuSensors& gpu) {
      *out = {.gpu = gpu.gpu_percent, .memory = gpu.memory_percent};
      return NVML_SUCCESS;
    });
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
          .nvmlSystemGetDriverVersion = F::driver_version,
          .nvmlDeviceGetCount_v2 = F::count,
          .nvmlDeviceGetHandleByIndex_v2 = F::by_index,
          .nvmlDeviceGetHandleByPciBusId_v2 = F::by_bus,
          .nvmlDeviceGetName = F::name,
          .nvmlDeviceGetPciInfo_v3 = F::pci,
          .nvmlDeviceGetMemoryInfo = F::memory,
          .nvmlDeviceGetPowerUsage = F::power,
          .nvmlDeviceGetEnforcedPowerLimit = F::power_limit,
          .nvmlDeviceGetTotalEnergyConsumption = F::energy,
          .nvmlDeviceGetTemperature = F::temperature,
          .nvmlDeviceGetClockInfo = F::clock,
          .nvmlDeviceGetMaxClockInfo = F::max_clock,
          .nvmlDeviceGetCurrentClocksEventReasons = F::reasons,
          .nvmlDeviceGetUtilizationRates = F::utilization};
}

}  // namespace emu::fakes
