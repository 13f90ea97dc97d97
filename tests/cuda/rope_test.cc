// The kernel of cuda/rope.cu runs the op cases, and shapes of real models on its 16-byte path.
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class RopeKernel : public KernelTest {};

TEST_F(RopeKernel, AcceptsAnyAlignment) { needs_no_alignment(Rope::kName, rope_cases, 5); }

// Head counts that are and are not multiples of a thread's, packed rows with a gap after them, rows off by one element.
TEST_F(RopeKernel, VectorLoadsMatchReference) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const DType dtype : kFloats) {
    for (const auto& [heads, dim, gap] :
         {std::array<int64_t, 3>{1, 64, 0}, {5, 128, 256}, {8, 64, 64}, {10, 96, 0}, {3, 64, 1}}) {
      OpCase<Rope> c{cat(heads, "x", dim, " gap ", gap, " ", dtype),
                     {.x = tensor(dtype, {9, heads * dim}, gap ? heads * dim + gap : 0),
                      .cos_sin = tensor(DType::f32, {30, dim}),
                      .positions = tensor(DType::i32, {9}),
                      .heads = heads,
                      .head_dim = dim,
                      .inverse = heads % 2 == 0}};
      c.values["positions"] = below(30);
      examine(c);
    }
  }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

#ifdef ATHANOR_EMULATED_GPU
TEST(RopeKernelBudget, AccessesAreCoalesced) {
  const AccessBudget budget;
  EXPECT_EQ(budget.check(Rope{.x = budget.tensor(DType::bf16, {8, 8 * 128}, 12 * 128),
                              .cos_sin = budget.tensor(DType::f32, {16, 128}),
                              .positions = budget.indices({0, 1, 2, 3, 15, 0, 1, 7}),
                              .heads = 8,
                              .head_dim = 128}),
            "");
}
#endif
}  // namespace
}  // namespace athanor
