// The fixture of kernel tests: the op cases of tests/ops run on a GPU, or on the emulated one, against the reference in
// doubles: values, gradients, guards around every tensor, the same bits in every run. A test file is the same for both.
#pragma once
#include <gtest/gtest.h>

#include "tests/cuda/cuda_backend.h"
#include "tests/ops/cases.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/budget.h"
#include "emulator/emulator.h"
#endif

namespace athanor {

class KernelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
  // All cases of one op of a family; at least `least` of them.
  static void agrees_with_the_reference(const char* op, void (*family)(Examiner&), int least = 1) {
    Examiner examine([](int threads) { return make_cuda_backend(threads); }, {.threads = {1, 2}, .only = op});
    family(examine);
    const auto& seen = examine.seen();
    EXPECT_TRUE(seen.contains(op) && seen.at(op) >= least) << "few cases of " << op;
    EXPECT_TRUE(examine.findings().empty()) << examine.report();
  }
};
}  // namespace athanor
