// The kernels of cuda/moe.cu and cuda/grouped_gemm.cu run the op cases of MoE.
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class MoeKernels : public KernelTest {};

TEST_F(MoeKernels, RouteForwardMatchesReference) { agrees_with_the_reference(RouteFwd::kName, moe_cases, 10); }
TEST_F(MoeKernels, DropChoicesMatchesReference) { agrees_with_the_reference(DropChoices::kName, moe_cases, 10); }
TEST_F(MoeKernels, RouteBackwardMatchesReference) { agrees_with_the_reference(RouteBwd::kName, moe_cases, 20); }
TEST_F(MoeKernels, StepRouterBiasMatchesReference) { agrees_with_the_reference(StepRouterBias::kName, moe_cases, 6); }
TEST_F(MoeKernels, CountExpertsMatchesReference) { agrees_with_the_reference(CountExperts::kName, moe_cases, 5); }
TEST_F(MoeKernels, ExpertLoadsMatchesReference) { agrees_with_the_reference(ExpertLoads::kName, moe_cases, 5); }
TEST_F(MoeKernels, SortByExpertMatchesReference) { agrees_with_the_reference(SortByExpert::kName, moe_cases, 10); }
TEST_F(MoeKernels, SendSlotsMatchesReference) { agrees_with_the_reference(SendSlots::kName, moe_cases, 10); }
TEST_F(MoeKernels, SumRowsMatchesReference) { agrees_with_the_reference(SumRows::kName, moe_cases, 10); }
TEST_F(MoeKernels, WeightedSwigluForwardMatchesReference) {
  agrees_with_the_reference(WeightedSwigluFwd::kName, moe_cases, 10);
}
TEST_F(MoeKernels, WeightedSwigluBackwardMatchesReference) {
  agrees_with_the_reference(WeightedSwigluBwd::kName, moe_cases, 10);
}
TEST_F(MoeKernels, GroupedGemmMatchesReference) { agrees_with_the_reference(GroupedGemm::kName, moe_cases, 20, 4); }

TEST_F(MoeKernels, AcceptsAnyAlignment) {
  needs_no_alignment(SumRows::kName, moe_cases, 9);
  needs_no_alignment(WeightedSwigluFwd::kName, moe_cases, 9);
  needs_no_alignment(WeightedSwigluBwd::kName, moe_cases, 9);
  needs_no_alignment(GroupedGemm::kName, moe_cases, 19);
}

}  // namespace
}  // namespace athanor
