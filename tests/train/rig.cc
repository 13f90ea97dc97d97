#include "cpu/make_cpu.h"
#include "tests/train/harness.h"

namespace athanor::testing {

Rig::Rig(int threads) {
  CpuBackend cpu = make_cpu({.threads = threads});
  device = std::move(cpu.device);
  ops = std::move(cpu.ops);
  mesh = std::make_unique<ProcessMesh>(make_single(*device), std::array<int, kAxes>{1, 1, 1, 1, 1, 1});
}

}  // namespace athanor::testing
