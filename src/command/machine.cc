#include "command/machine.h"

#include "base/log.h"
#include "base/version.h"
#include "cpu/make_cpu.h"
#include "cuda/make_cuda.h"

namespace athanor {

namespace {

CudaAttention to_cuda(AttentionChoice choice) {
  switch (choice) {
    case AttentionChoice::automatic:
      return CudaAttention::automatic;
    case AttentionChoice::builtin:
      return CudaAttention::builtin;
    case AttentionChoice::cudnn:
      return CudaAttention::cudnn;
  }
  return CudaAttention::automatic;
}

}  // namespace

Machine::Machine(const Config& config) {
  bool gpu = config.device == DeviceChoice::cuda;
  if (config.device == DeviceChoice::automatic) {
    const std::string why = why_no_cuda();
    gpu = why.empty();
    if (!gpu) log::info("device: using the CPU; ", why);
  }
  if (gpu) {
    CudaBackend cuda = make_cuda(
        {.attention = to_cuda(config.attention), .tokens = config.reset_attention_mask ? 0 : config.seq_length});
    device_ = std::move(cuda.device);
    ops_ = std::move(cuda.ops);
    tuning_ = cuda.tuning;
    description_ = std::move(cuda.description);
  } else {
    CpuBackend cpu = make_cpu({.threads = int(config.threads), .onednn = config.cpu_gemm == CpuGemm::onednn});
    device_ = std::move(cpu.device);
    ops_ = std::move(cpu.ops);
    threads_ = cpu.threads;
    description_ = std::move(cpu.description);
  }
  mesh_ = std::make_unique<ProcessMesh>(make_single(*device_), std::array<int, kAxes>{1, 1, 1, 1, 1, 1});
}

Config load_config_logged(const std::string& path, const std::vector<std::string>& overrides) {
  std::vector<std::string> notices;
  Config config = load_config(path, overrides, &notices);
  log::configure({.level = config.log_level});
  for (const std::string& notice : notices) log::info(notice);
  return config;
}

ProgramInfo program_info(const std::vector<std::string>& command_line) {
  const Version v = program_version();
  return {.version = cat(v.version, " (", v.commit, ")"), .command = command_line, .libraries = {}};
}

}  // namespace athanor
