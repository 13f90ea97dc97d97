// The kernels of cuda/moe.cu and cuda/grouped_gemm.cu run the op cases of MoE.
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class MoeKernels : public KernelTest {};

TEST_F(MoeKernels, RouteForward) { agrees_with_the_reference(RouteFwd::kName, moe_cases, 10); }
TEST_F(MoeKernels, DropChoices) { agrees_with_the_reference(DropChoices::kName, moe_cases, 10); }
TEST_F(MoeKernels, RouteBackward) { agrees_with_the_reference(RouteBwd::kName, moe_cases, 20); }
TEST_F(MoeKernels, SortByExpert) { agrees_with_the_reference(SortByExpert::kName, moe_cases, 10); }
TEST_F(MoeKernels, SendSlots) { agrees_with_the_reference(SendSlots::kName, moe_cases, 10); }
TEST_F(MoeKernels, SumRows) { agrees_with_the_reference(SumRows::kName, moe_cases, 10); }
TEST_F(MoeKernels, WeightedSwigluForward) { agrees_with_the_reference(WeightedSwigluFwd::kName, moe_cases, 10); }
TEST_F(MoeKernels, WeightedSwigluBackward) { agrees_with_the_reference(WeightedSwigluBwd::kName, moe_cases, 10); }
TEST_F(MoeKernels, GroupedGemms) { agrees_with_the_reference(GroupedGemm::kName, moe_cases, 20, 4); }

TEST_F(MoeKernels, AnyAlignment) {
  needs_no_alignment(SumRows::kName, moe_cases, 9);
  needs_no_alignment(WeightedSwigluFwd::kName, moe_cases, 9);
  needs_no_alignment(WeightedSwigluBwd::kName, moe_cases, 9);
  needs_no_alignment(GroupedGemm::kName, moe_cases, 19);
}

}  // namespace
}  // namespace athanor
