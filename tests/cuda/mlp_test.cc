// The kernels of cuda/mlp.cu and activations.cu run the op cases of GELU, SwiGLU, other activations and scaled sums;
// also longer rows on their 16-byte path.
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class MlpKernels : public KernelTest {};

TEST_F(MlpKernels, AcceptsAnyAlignment) {
  needs_no_alignment(GeluBwd::kName, mlp_cases, 9);
  needs_no_alignment(SwigluBwd::kName, mlp_cases, 9);
}

// Whole 16-byte packs and several blocks, the last one not full; gradients that overwrite their inputs.
TEST_F(MlpKernels, VectorLoadsMatchReference) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const DType dtype : kFloats) {
    const Tensor x = tensor(dtype, {7, 1200}), gu = tensor(dtype, {7, 2400});
    const std::string name = cat("7x1200 ", dtype);
    examine(OpCase<GeluFwd>{name, {.y = x, .x = x}});
    examine(OpCase<GeluBwd>{name, {.dx = x, .dy = x, .x = x}, {}, false, {{"dx", "dy"}}});
    examine(OpCase<SwigluFwd>{name, {.y = x, .gu = gu}});
    examine(OpCase<SwigluBwd>{name, {.dgu = gu, .dy = x, .gu = gu}, {}, false, {{"dgu", "gu"}}});
    const SwigluBwd with_y{.dgu = gu, .dy = x, .gu = gu, .y = x};
    examine(OpCase<SwigluBwd>{cat(name, " and y"), with_y, {}, false, {{"dgu", "gu"}, {"y", "dy"}}});
  }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

// Intermediate overflow must not corrupt the result, and NaN must not vanish.
TEST_F(MlpKernels, ExtremeValuesMatchReference) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  const Tensor x = tensor(DType::f32, {1, 8}), gu = tensor(DType::f32, {1, 8}), dy = tensor(DType::f32, {1, 4});
  const Init values = listed({1e25, -1e25, 3e38, -3e38, double(NAN), 1e-30, -88.7, 7e4});
  examine(OpCase<GeluFwd>{"extreme", {.y = x, .x = x}, {{"x", values}}});
  examine(OpCase<GeluBwd>{"extreme", {.dx = x, .dy = x, .x = x}, {{"x", values}}});
  examine(OpCase<SwigluFwd>{"extreme", {.y = dy, .gu = gu}, {{"gu", listed({-1e25, -3e38, double(NAN), 1e-30})}}});
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

#ifdef ATHANOR_EMULATED_GPU
TEST(MlpKernelsBudget, AccessesAreCoalesced) {
  const AccessBudget budget;
  const Tensor x = budget.tensor(DType::bf16, {16, 512}), gu = budget.tensor(DType::bf16, {16, 1024});
  EXPECT_EQ(budget.check(GeluFwd{.y = x, .x = x}, GeluBwd{.dx = x, .dy = x, .x = x}, SwigluFwd{.y = x, .gu = gu},
                         SwigluBwd{.dgu = gu, .dy = x, .gu = gu}, SwigluBwd{.dgu = gu, .dy = x, .gu = gu, .y = x}),
            "");
}
#endif
}  // namespace
}  // namespace athanor
