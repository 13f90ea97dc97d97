// Builds the CPU backend: device and ops.
#include "cpu/make_cpu.h"

#include "cpu/cpu_device.h"
#include "cpu/cpu_ops.h"
#include "cpu/kernel.h"

namespace athanor {

CpuBackend make_cpu(const CpuOptions& options) {
  if (options.threads < 0) throw Error(cat("cpu: threads must be 0 (all) or more, got ", options.threads), Exit::usage);
  auto device = std::make_unique<CpuDevice>(options.threads, options.memory_limit);
  auto ops = std::make_unique<CpuOps>(device->pool());
  std::string description = device->description();
  const int threads = device->pool().size();
  return {std::move(device), std::move(ops), threads, std::move(description)};
}

}  // namespace athanor
