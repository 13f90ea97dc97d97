#include "cpu/make_cpu.h"
#include "tests/train/harness.h"

namespace athanor::testing {

const std::vector<int> kThreadCounts = {2, 3, 4, 8, 16};
const int kMatrixEvery = 23;

Rig::Rig(int threads) {
  CpuBackend cpu = make_cpu({.threads = threads});
  device = std::move(cpu.device);
  ops = std::move(cpu.ops);
  mesh = std::make_unique<ProcessMesh>(make_single(*device), MeshSizes{});
}

}  // namespace athanor::testing
