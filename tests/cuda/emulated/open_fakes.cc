// Replaces src/cuda/libraries/open.cc on the emulated GPU: returns the function tables of fakes instead of NVIDIA's
// libraries. One fake per library for the life of the process, like real libraries.
#include <cstdlib>

#include "base/error.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "emulator/libraries/cublaslt/fake_cublaslt.h"
#include "emulator/libraries/cudnn/fake_cudnn.h"
#include "emulator/libraries/cupti/fake_cupti.h"
#include "emulator/libraries/nccl/fake_nccl.h"
#include "emulator/libraries/nccl/process_nccl.h"
#include "emulator/libraries/nvml/fake_nvml.h"

namespace athanor {
namespace {

template <class Fake, class... Argument>
auto fake_table(Argument&&... argument) {
  static Fake fake(emu::fakes::emulated_machine(), std::forward<Argument>(argument)...);
  return fake.table();
}
Library emulated(Version version) { return {nullptr, "emulated", version}; }

}  // namespace

bool built_with_cuda_libraries() { return true; }
std::vector<LibrarySpec> library_specs() { return {}; }
std::vector<LibraryReport> probe_libraries(const SearchPlaces&) {
  std::vector<LibraryReport> reports;
  for (const char* name : {"cuBLASLt", "cuDNN", "NVRTC", "NCCL", "NVML", "CUPTI", "CUDA driver"})
    reports.push_back({.name = name, .path = "emulated", .version = {1, 0, 0}, .problem = {}});
  return reports;
}

// EMULATED_CUBLASLT: none (not installed).
Opened<CublasLtTable> open_cublaslt(const SearchPlaces&) {
  const char* setting = std::getenv("EMULATED_CUBLASLT");
  if (setting && std::string(setting) == "none")
    throw Error("cuBLASLt: libcublasLt.so.13 is nowhere; install apt: libcublas-13-0, or pip: nvidia-cublas");
  return {fake_table<emu::fakes::FakeCublasLt>(), emulated({13, 1, 0})};
}
Opened<CudnnTable> open_cudnn(const SearchPlaces&) {
  return {fake_table<emu::fakes::FakeCudnn>(), emulated({9, 19, 0})};
}
Library open_nvrtc(const SearchPlaces&, const std::string&) { return emulated({13, 0, 0}); }
// EMULATED_NCCL: processes (ranks are processes), none (not installed); otherwise ranks are threads of this process.
Opened<NcclTable> open_nccl(const SearchPlaces&) {
  const char* setting = std::getenv("EMULATED_NCCL");
  const std::string kind = setting ? setting : "";
  if (kind == "none") throw Error("NCCL: libnccl.so.2 is nowhere (apt: libnccl2, or pip: nvidia-nccl-cu13)");
  static const NcclTable processes = emu::fakes::process_nccl(emu::fakes::emulated_machine());
  return {kind == "processes" ? processes : fake_table<emu::fakes::FakeNccl>(), emulated({2, 28, 9})};
}
Opened<NvmlTable> open_nvml(const SearchPlaces&) {
  const char* reasons = std::getenv("EMULATED_THROTTLE");  // a bit mask of NVML's clocks event reasons
  const emu::fakes::GpuSensors gpu{.bus = 0x10, .clock_reasons = reasons ? std::strtoull(reasons, nullptr, 0) : 0};
  return {fake_table<emu::fakes::FakeNvml>(std::vector{gpu}), emulated({1, 0, 0})};
}
// EMULATED_CUPTI: none (not installed), old, full (it loses all but a few records).
Opened<CuptiTable> open_cupti(const SearchPlaces&) {
  const char* setting = std::getenv("EMULATED_CUPTI");
  const std::string kind = setting ? setting : "";
  const char* install = "install apt: cuda-cupti-13-0, or pip: nvidia-cuda-cupti";
  if (kind == "none") throw Error(cat("CUPTI: libcupti.so.13 is nowhere; ", install));
  if (kind == "old") throw Error(cat("CUPTI: version 12.8.0 has another interface; ", install));
  static emu::fakes::FakeCupti fake(emu::fakes::emulated_machine());
  fake.lose_beyond(kind == "full" ? 20 : SIZE_MAX);
  return {fake.table(), emulated({13, 0, 1})};
}

}  // namespace athanor
