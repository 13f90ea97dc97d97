// The kernels of cuda/residual_norm.cu run the op cases of the norms: parity with the reference in doubles, gradients,
// guards around every tensor, the same bits in every run. This file is the same on a GPU and on the emulated one.
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class ResidualNorm : public KernelTest {};

TEST_F(ResidualNorm, Forward) { agrees_with_the_reference(AddNormFwd::kName, norm_cases, 10); }
TEST_F(ResidualNorm, Apply) { agrees_with_the_reference(NormApply::kName, norm_cases, 10); }
TEST_F(ResidualNorm, Backward) { agrees_with_the_reference(AddNormBwd::kName, norm_cases, 10); }

// Rows that are whole vectors, where the kernels take their 16-byte path, and one element off.
TEST_F(ResidualNorm, LongRows) {
  Examiner examine([](int threads) { return make_cuda_backend(threads); }, {.threads = {2}});
  for (const int64_t columns : {768, 769, 5120}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Tensor x = tensor(dtype, {5, columns}), column = tensor(DType::f32, {5}), w = tensor(dtype, {columns});
      examine(OpCase<AddNormFwd>{cat("5x", columns, " ", dtype),
                                 {.kind = NormKind::layer,
                                  .h = x,
                                  .y = x,
                                  .mean = column,
                                  .rstd = column,
                                  .res = x,
                                  .delta = x,
                                  .w = w,
                                  .b = w,
                                  .eps = 1e-5f}});
      OpCase<AddNormBwd> backward{cat("5x", columns, " ", dtype),
                                  {.kind = NormKind::rms,
                                   .dh = x,
                                   .dw = tensor(DType::f32, {columns}),
                                   .dy = x,
                                   .h = x,
                                   .rstd = column,
                                   .w = w}};
      backward.values["rstd"] = uniform(0.5, 1.5);
      examine(backward);
    }
  }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

#ifdef ATHANOR_EMULATED_GPU
TEST(ResidualNormBudget, AccessesAreCoalescedAndFreeOfConflicts) {
  const TestBackend backend = make_cuda_backend(1);
  constexpr int64_t kRows = 20, kColumns = 768;
  const auto memory = [&](size_t bytes) { return backend.device->allocate(bytes, Mem::device); };
  const auto matrix = [&] { return Tensor{memory(kRows * kColumns * 2), DType::bf16, {kRows, kColumns}}; };
  const auto floats = [&](int64_t n) { return Tensor{memory(size_t(n) * 4), DType::f32, {n}}; };
  const Tensor w{memory(kColumns * 2), DType::bf16, {kColumns}}, b{memory(kColumns * 2), DType::bf16, {kColumns}};
  AddNormFwd forward{.kind = NormKind::layer,
                     .h = matrix(),
                     .y = matrix(),
                     .mean = floats(kRows),
                     .rstd = floats(kRows),
                     .res = matrix(),
                     .delta = matrix(),
                     .w = w,
                     .b = b,
                     .eps = 1e-5f};
  AddNormBwd backward{.kind = NormKind::layer,
                      .dh = matrix(),
                      .dw = floats(kColumns),
                      .db = floats(kColumns),
                      .dy = matrix(),
                      .h = forward.h,
                      .mean = forward.mean,
                      .rstd = forward.rstd,
                      .w = w};
  NormApply apply{.kind = NormKind::layer,
                  .y = forward.y,
                  .h = forward.h,
                  .mean = forward.mean,
                  .rstd = forward.rstd,
                  .w = w,
                  .b = b};
  emu::reset_kernel_counters();
  emu::count_accesses(true);
  backend.ops->run(forward, nullptr);
  backend.ops->run(apply, nullptr);
  backend.ops->run(backward, memory(backend.ops->scratch(backward)));
  backend.device->sync();
  emu::count_accesses(false);
  EXPECT_EQ(emu::compare_with_budget("tests/cuda/access_budget.txt", emu::kernel_counters()), "");
}
#endif
}  // namespace
}  // namespace athanor
