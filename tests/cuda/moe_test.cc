// The kernels of cuda/moe.cu and cuda/grouped_gemm.cu run the op cases of MoE.
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class MoeKernels : public KernelTest {};

TEST_F(MoeKernels, AcceptsAnyAlignment) {
  needs_no_alignment(SumRows::kName, moe_cases, 9);
  needs_no_alignment(WeightedSwigluFwd::kName, moe_cases, 9);
  needs_no_alignment(WeightedSwigluBwd::kName, moe_cases, 9);
  needs_no_alignment(GroupedGemm::kName, moe_cases, 19);
}

}  // namespace
}  // namespace athanor
