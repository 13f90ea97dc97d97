#include "tests/ops/backends.h"

#include "cpu/make_cpu.h"
#include "reference/reference_ops.h"
#include "tests/ops/host_device.h"

namespace athanor {

TestBackend make_reference_backend(int) { return {std::make_shared<HostDevice>(), make_reference()}; }

TestBackend make_cpu_backend(int threads) {
  CpuBackend b = make_cpu({.threads = threads});
  std::shared_ptr<Device> device = std::move(b.device);
  return {device, std::shared_ptr<Ops>(b.ops.release(), [device](Ops* ops) { delete ops; })};
}

}  // namespace athanor
