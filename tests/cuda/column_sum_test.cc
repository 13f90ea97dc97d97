// The kernel of cuda/column_sum.cu runs the op cases, and matrices that are split into ranges of rows.
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class ColumnSumKernel : public KernelTest {};

TEST_F(ColumnSumKernel, AcceptsAnyAlignment) { needs_no_alignment(ColumnSum::kName, gemm_cases, 4); }

// Whole 16-byte packs, several column tiles, and a last row range that is not full.
TEST_F(ColumnSumKernel, VectorLoadsMatchReference) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const DType dtype : kFloats) {
    for (const Shape& s : {Shape{5, 520}, Shape{200, 264}}) {
      examine(OpCase<ColumnSum>{cat(s, " ", dtype), {.out = tensor(DType::f32, {s[1]}), .x = tensor(dtype, s)}});
    }
  }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

#ifdef ATHANOR_EMULATED_GPU
TEST(ColumnSumKernelBudget, AccessesAreCoalesced) {
  const AccessBudget budget;
  EXPECT_EQ(
      budget.check(ColumnSum{.out = budget.tensor(DType::f32, {512}), .x = budget.tensor(DType::bf16, {70, 512})}), "");
}
#endif
}  // namespace
}  // namespace athanor
