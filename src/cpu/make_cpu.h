// Creates the CPU backend: device and ops.
#pragma once
#include <memory>
#include <string>

#include "device/device.h"
#include "ops/ops.h"

namespace athanor {

struct CpuOptions {
  int threads = 0;          // 0 = all usable cores
  size_t memory_limit = 0;  // bytes; 0 = what the machine and its cgroup allow
};

struct CpuBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;  // must not outlive device
  int threads = 0;           // number of threads in use
  std::string description;   // cores and instruction set, for the log
};

CpuBackend make_cpu(const CpuOptions&);

}  // namespace athanor
