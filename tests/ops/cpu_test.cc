// The cases on the CPU backend, with 1 to 16 threads.
#include <gtest/gtest.h>

#include "cpu/make_cpu.h"
#include "tests/ops/cases.h"

namespace athanor {
namespace {

TestBackend cpu(int threads) {
  CpuBackend b = make_cpu({.threads = threads});
  std::shared_ptr<Device> device = std::move(b.device);
  return {device, std::shared_ptr<Ops>(b.ops.release(), [device](Ops* ops) { delete ops; })};
}

class CpuCases : public testing::TestWithParam<Family> {};
TEST_P(CpuCases, Pass) {
  Examiner examine(cpu, {});
  GetParam().run(examine);
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}
INSTANTIATE_TEST_SUITE_P(Families, CpuCases, testing::ValuesIn(kFamilies),
                         [](const auto& family) { return std::string(family.param.name); });

}  // namespace
}  // namespace athanor
