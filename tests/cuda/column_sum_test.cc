// The kernel of cuda/column_sum.cu runs the op cases, and matrices that are cut into ranges of rows.
#include "tests/cuda/counted.h"

namespace athanor {
namespace {

class ColumnSumKernel : public KernelTest {};

TEST_F(ColumnSumKernel, Cases) { agrees_with_the_reference(ColumnSum::kName, gemm_cases, 10); }

// Whole packs, several tiles of columns, the last range of rows not full.
TEST_F(ColumnSumKernel, Packs) {
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
  const Counted counted;
  counted.run(ColumnSum{.out = counted.zeros(DType::f32, {512}), .x = counted.zeros(DType::bf16, {70, 512})});
  counted.expect_within_budget();
}
#endif
}  // namespace
}  // namespace athanor
