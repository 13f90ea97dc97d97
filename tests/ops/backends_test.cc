// Every case on every backend: the reference against itself (bounds, repetition), and the CPU backend with 1 to 16
// threads against the reference. The CPU's gradients are compared with finite differences, and the reference's with the
// CPU's.
#include "tests/ops/backends.h"

#include <gtest/gtest.h>

#include "tests/ops/cases.h"

namespace athanor {
namespace {

TEST(Reference, PassesEveryCase) {
  Examiner examine(make_reference_backend, {.threads = {1}, .every = 4, .gradients = false});
  for (const Family& family : kFamilies) family.run(examine);
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

class Cpu : public testing::TestWithParam<Family> {};
TEST_P(Cpu, PassesItsCases) {
  Examiner examine(make_cpu_backend, {});
  GetParam().run(examine);
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}
INSTANTIATE_TEST_SUITE_P(Family, Cpu, testing::ValuesIn(kFamilies),
                         [](const auto& family) { return std::string(family.param.name); });

}  // namespace
}  // namespace athanor
