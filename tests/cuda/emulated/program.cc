// The whole program on the emulated GPU, configured by environment variables:
//   EMULATED_SEED=7              the order of threads, blocks, streams and completions
//   EMULATED_GPU=A100            A100, RTX4090, H200 (default), B200, none
//   EMULATED_GPUS=2              number of GPUs (default 1)
//   EMULATED_NCCL=processes      ranks are processes; none: NCCL is not installed
//   EMULATED_CUPTI=none          not installed; old: another version; full: loses records
//   EMULATED_MEMORY_MIB=64       limits the memory
//   EMULATED_FAILURE=cudaLaunchKernelExC:3:700  the third call fails with this code
// A fault, a misuse or a leak is printed to stderr; unless a failure was planned, the exit status is then 99.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "command/command.h"
#include "emulator/emulator.h"
#include "emulator/runtime/control.h"

namespace {

const char* setting(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

void simulate(const std::string& name, int count) {
  if (name == "none") return emu::simulate({});
  const emu::GpuModel model = name == "A100"      ? emu::gpu_a100()
                              : name == "RTX4090" ? emu::gpu_rtx4090()
                              : name == "B200"    ? emu::gpu_b200()
                                                  : emu::gpu_h200();
  emu::simulate(std::vector<emu::GpuModel>(size_t(count), model));
}

void plan_failure(const std::string& plan) {
  const size_t first = plan.find(':'), second = plan.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return;
  const int nth = std::atoi(plan.c_str() + first + 1), code = std::atoi(plan.c_str() + second + 1);
  const std::string api = plan.substr(0, first);
  if (api.rfind("cuda", 0) == 0) {
    emu::fail_next(api, nth, static_cast<cudaError_t>(code));
  } else {
    emu::fail_next(api, nth, code);
  }
}

// Reports faults, misuse and leaks of the emulated GPU; returns whether there are any.
bool complains() {
  const emu::Report report = emu::take_report();
  if (report.fault != emu::Fault::kNone) {
    std::fprintf(stderr, "EMULATED GPU: %s\n", report.text.c_str());
    return true;  // after a fault nothing can be freed
  }
  const std::vector<std::string> leaks = emu::leaks();
  for (const std::string& leak : leaks) std::fprintf(stderr, "EMULATED GPU: leak: %s\n", leak.c_str());
  return !leaks.empty();
}

}  // namespace

int main(int argc, char** argv) {
  simulate(setting("EMULATED_GPU"), std::max(1, std::atoi(setting("EMULATED_GPUS"))));
  if (*setting("EMULATED_SEED")) emu::seed(std::strtoull(setting("EMULATED_SEED"), nullptr, 10));
  if (*setting("EMULATED_MEMORY_MIB"))
    emu::set_memory_limit(std::strtoull(setting("EMULATED_MEMORY_MIB"), nullptr, 10) << 20);
  if (*setting("EMULATED_NCCL"))
    emu::set_wait_limit(600);  // other processes may be slow; whoever hangs the program
                               // reports it
  plan_failure(setting("EMULATED_FAILURE"));
  const bool planned = *setting("EMULATED_FAILURE");
  const int code = athanor::run_cli(argc, argv);
  return complains() && !planned ? 99 : code;
}
