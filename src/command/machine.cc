#include "command/machine.h"

#include "base/log.h"
#include "base/version.h"

namespace athanor {

Machine::Machine(const Config& config) {
  if (config.device == DeviceChoice::cuda)
    throw Error("device: this program has no CUDA backend yet; use \"device\": \"cpu\" or \"auto\"", Exit::usage);
  cpu_ = make_cpu({.threads = int(config.threads), .onednn = config.cpu_gemm == CpuGemm::onednn});
  mesh_ = std::make_unique<ProcessMesh>(make_single(*cpu_.device), std::array<int, kAxes>{1, 1, 1, 1, 1, 1});
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
