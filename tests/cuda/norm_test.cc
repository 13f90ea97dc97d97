// The kernels of cuda/norm.cu run the op cases of the norms: parity with the reference in double, gradients, guards
// around every tensor, the same bits in every run. This file is the same on a GPU and on the emulated one.
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class Norms : public KernelTest {};

TEST_F(Norms, AcceptsAnyAlignment) {
  for (const char* op : {NormFwd::kName, NormApply::kName, NormBwd::kName}) needs_no_alignment(op, norm_cases, 36);
}

// Rows that need more shared memory than any block of the GPU can have.
TEST_F(Norms, RowsThatAreTooLongAreRefused) {
  Examiner examine(make_cuda_backend, {.threads = {1}});
  const Tensor x = tensor(DType::f32, {1, 40001}), w = tensor(DType::f32, {40001}), column = tensor(DType::f32, {1});
  examine(OpCase<NormBwd>{
      "long",
      {.kind = NormKind::layer, .dh = x, .dw = w, .db = w, .dy = x, .h = x, .mean = column, .rstd = column, .w = w}});
  ASSERT_EQ(examine.findings().size(), 1U);
  EXPECT_NE(examine.findings()[0].detail.find("rows of 40001 columns need 320008 bytes of shared memory"),
            std::string::npos)
      << examine.report();
}

struct Setting {
  NormKind kind;
  DType x, w;
  int64_t rows, columns;
  std::string name() const {
    return cat(kind == NormKind::rms ? "rms " : "layer ", rows, "x", columns, " ", x, " w ", w);
  }
  bool layer() const { return kind == NormKind::layer; }
};
NormFwd forward(const Setting& s) {
  const Tensor x = tensor(s.x, {s.rows, s.columns}), w = tensor(s.w, {s.columns}),
               column = tensor(DType::f32, {s.rows});
  return {.kind = s.kind,
          .y = x,
          .mean = s.layer() ? column : Tensor{},
          .rstd = column,
          .h = x,
          .w = w,
          .b = s.layer() ? w : Tensor{},
          .eps = 1e-5f};
}
NormBwd backward(const Setting& s) {
  const NormFwd f = forward(s);
  const Tensor sums = tensor(DType::f32, {s.columns});
  return {.kind = s.kind,
          .dh = f.h,
          .dw = sums,
          .db = s.layer() ? sums : Tensor{},
          .dy = f.y,
          .h = f.h,
          .mean = f.mean,
          .rstd = f.rstd,
          .w = f.w};
}
NormApply apply(const Setting& s) {
  const NormFwd f = forward(s);
  return {.kind = s.kind, .y = f.y, .h = f.h, .mean = f.mean, .rstd = f.rstd, .w = f.w, .b = f.b};
}

// Rows in registers: eight or four per block, or one per block of several warps; and rows that do not fit, or are not
// multiples of a vector.
constexpr Setting kRows[] = {
    {NormKind::layer, DType::bf16, DType::bf16, 21, 264}, {NormKind::rms, DType::f16, DType::f32, 11, 768},
    {NormKind::layer, DType::bf16, DType::f32, 11, 768},  {NormKind::layer, DType::f32, DType::f32, 5, 1028},
    {NormKind::rms, DType::bf16, DType::bf16, 11, 769},   {NormKind::layer, DType::bf16, DType::bf16, 5, 5120},
    {NormKind::rms, DType::f32, DType::bf16, 3, 5120},    {NormKind::layer, DType::bf16, DType::bf16, 2, 8200},
};

TEST_F(Norms, LongRowsMatchReference) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const Setting& s : kRows) {
    examine(OpCase<NormFwd>{s.name(), forward(s)});
    OpCase<NormBwd> b{s.name(), backward(s)};
    b.values["rstd"] = uniform(0.5, 1.5);
    examine(b);
  }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

// Recomputation gives the same bits as the forward pass.
TEST_F(Norms, ApplyRecomputesTheSameBits) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const Setting& s : kRows) {
    const auto first = examine.backend_results(OpCase<NormFwd>{s.name(), forward(s)});
    OpCase<NormApply> again{s.name(), apply(s)};
    for (const Result& r : first)
      if (r.name != "y") again.values[r.name] = listed(decoded(r.like.dtype, r.after));
    EXPECT_EQ(result(examine.backend_results(again), "y").after, result(first, "y").after) << s.name();
  }
}

#ifdef ATHANOR_EMULATED_GPU
TEST(NormBudget, AccessesAreCoalescedAndFreeOfConflicts) {
  const AccessBudget budget;
  const Setting s{NormKind::layer, DType::bf16, DType::bf16, 20, 768};
  NormFwd f = forward(s);
  NormApply a = apply(s);
  NormBwd b = backward(s);
  for (Tensor* t : {&f.y, &f.mean, &f.rstd, &f.h,  &f.w,  &f.b,  &a.y, &a.h,    &a.mean, &a.rstd,
                    &a.w, &a.b,    &b.dh,   &b.dw, &b.db, &b.dy, &b.h, &b.mean, &b.rstd, &b.w})
    *t = budget.tensor(t->dtype, t->shape);
  EXPECT_EQ(budget.check(f, a, b), "");
}
#endif
}  // namespace
}  // namespace athanor
