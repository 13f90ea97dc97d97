// An NVML that reports what a test sets: power, clocks, temperatures and throttling, by GPU. A lost GPU
// and unsupported sensors come on demand.
#pragma once
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "../fake_library.h"
#include "cuda/libraries/nvml_table.h"

namespace emu::fakes {

// What one GPU's sensors say. A test may change it while the program runs.
struct GpuSensors {
  unsigned bus = 0x19;  // PCI address 00000000:19:00.0
  unsigned milliwatts = 690000;
  unsigned celsius = 61;
  unsigned sm_mhz = 1755, memory_mhz = 3201;
  unsigned long long clock_reasons = 0;    // athanor::nvml::kClocks...
  bool lost = false;                       // every query answers NVML_ERROR_GPU_IS_LOST
  std::set<std::string> unsupported = {};  // functions that answer NVML_ERROR_NOT_SUPPORTED
};

class FakeNvml {
 public:
  FakeNvml(Machine machine, std::vector<GpuSensors> gpus);

  athanor::NvmlTable table() const;
  void set(size_t gpu, const GpuSensors& sensors);

  std::string last_refusal() const { return refusals_.last(); }
  int balance() const;  // nvmlInit calls without nvmlShutdown

 private:
  friend struct NvmlFunctions;

  athanor::nvml::nvmlReturn_t refuse(athanor::nvml::nvmlReturn_t code, const std::string& why);

  Machine machine_;
  Refusals refusals_;
  mutable std::mutex mutex_;
  std::vector<GpuSensors> gpus_;
  int inits_ = 0;
  Installed<FakeNvml> installed_;
};

}  // namespace emu::fakes
