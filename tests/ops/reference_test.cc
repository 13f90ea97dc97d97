// The cases on the reference itself: it keeps its own bounds, and its gradients are those of its forward ops.
#include <gtest/gtest.h>

#include "reference/reference_ops.h"
#include "tests/ops/cases.h"
#include "tests/ops/host_device.h"

namespace athanor {
namespace {

TEST(Reference, PassesEveryCase) {
  for (const Family& family : kFamilies) {
    Examiner examine(
        [](int) {
          return TestBackend{std::make_shared<HostDevice>(), make_reference()};
        },
        {.threads = {1}});
    family.run(examine);
    EXPECT_TRUE(examine.findings().empty()) << family.name << ": " << examine.report();
  }
}

}  // namespace
}  // namespace athanor
