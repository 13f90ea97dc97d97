// Builds the CPU backend: device, ops, and the GEMM plug-in if it is requested.
#include "cpu/make_cpu.h"

#include "cpu/cpu_device.h"
#include "cpu/cpu_ops.h"
#include "cpu/gemm_plugin.h"
#include "cpu/kernel.h"

namespace athanor {

CpuBackend make_cpu(const CpuOptions& options) {
  if (options.threads < 0) throw Error(cat("cpu: threads must be 0 (all) or more, got ", options.threads), Exit::usage);
  const GemmPlugin* plugin = nullptr;
  if (options.onednn) {
    std::string why;
    plugin = load_gemm_plugin("athanor_onednn", &why);
    if (!plugin)
      throw Error(cat("cpu_gemm onednn: the plug-in cannot be used: ", why,
                      "; install libdnnl-dev and build again, or use \"cpu_gemm\": \"builtin\""));
  }
  auto device = std::make_unique<CpuDevice>(options.threads, options.memory_limit);
  auto ops = std::make_unique<CpuOps>(device->pool(), plugin);
  std::string description = cat(device->description(), ", GEMM ", plugin ? plugin->description : "builtin");
  const int threads = device->pool().size();
  return {std::move(device), std::move(ops), threads, std::move(description)};
}

}  // namespace athanor
