// The kernels of cuda/qk_norm.cu run the op cases, and head sizes of real models on the 16-byte path.
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class QkNormKernels : public KernelTest {};

TEST_F(QkNormKernels, AcceptsAnyAlignment) {
  needs_no_alignment(QkNormFwd::kName, norm_cases, 4);
  needs_no_alignment(QkNormBwd::kName, norm_cases, 4);
  needs_no_alignment(QkNormSums::kName, norm_cases, 4);
}

struct Case {
  int64_t rows, heads, kv_heads, dim;
  DType x, w;
};
template <class Op>
Op shapes(const Case& c) {
  Op op{};
  op.x = tensor(c.x, {c.rows, (c.heads + 2 * c.kv_heads) * c.dim});
  op.rstd = tensor(DType::f32, {c.rows, c.heads + c.kv_heads});
  op.wq = op.wk = tensor(c.w, {c.dim});
  op.heads = c.heads;
  op.kv_heads = c.kv_heads;
  return op;
}
QkNormFwd forward(const Case& c) {
  auto op = shapes<QkNormFwd>(c);
  op.y = op.x;
  op.eps = 1e-6f;
  return op;
}
QkNormBwd backward(const Case& c) {
  auto op = shapes<QkNormBwd>(c);
  op.dx = op.dy = op.x;
  op.dwq = op.dwk = tensor(DType::f32, {c.dim});
  return op;
}
// Sums of dy w x; without dy, of squares.
QkNormSums sums(const Case& c) {
  const auto op = shapes<QkNormFwd>(c);
  return {.sums = op.rstd, .dy = op.x, .x = op.x, .wq = op.wq, .wk = op.wk, .heads = c.heads, .kv_heads = c.kv_heads};
}

// Groups of 1 to 32 lanes, one or two 16-byte packs per lane, weights of another dtype than the rows, and long heads,
// which are cut into slices of equal and of different sizes.
TEST_F(QkNormKernels, VectorLoadsMatchReference) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const Case& c : {Case{40, 3, 1, 128, DType::bf16, DType::bf16}, Case{5, 2, 2, 256, DType::f16, DType::f32},
                        Case{3, 1, 1, 512, DType::bf16, DType::bf16}, Case{4, 2, 1, 256, DType::f32, DType::bf16},
                        Case{9, 2, 1, 80, DType::bf16, DType::f16}, Case{70, 2, 1, 8, DType::bf16, DType::f32},
                        Case{5, 1, 1, 2048, DType::bf16, DType::bf16}, Case{3, 2, 1, 1048, DType::f32, DType::bf16},
                        Case{3, 1, 1, 1051, DType::bf16, DType::bf16}}) {
    const std::string name = cat(c.rows, " rows ", c.heads, "/", c.kv_heads, "x", c.dim, " ", c.x, " w ", c.w);
    examine(OpCase<QkNormFwd>{name, forward(c)});
    OpCase<QkNormBwd> b{name, backward(c)};
    b.values["rstd"] = uniform(0.5, 1.5);
    examine(b);
    examine(OpCase<QkNormSums>{name, sums(c)});
  }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

#ifdef ATHANOR_EMULATED_GPU
TEST(QkNormKernelsBudget, AccessesAreCoalescedAndFreeOfConflicts) {
  const AccessBudget budget;
  const Case c{16, 6, 2, 128, DType::bf16, DType::bf16};
  QkNormFwd f = forward(c);
  QkNormBwd b = backward(c);
  QkNormSums s = sums(c), squares = s;
  squares.dy = {};
  const auto place = [&](Tensor& t) { t = budget.tensor(t.dtype, t.shape); };
  for (Tensor* t :
       {&f.y,  &f.rstd, &f.x,    &f.wq, &f.wk, &b.dx, &b.dwq, &b.dwk,        &b.dy,      &b.x,        &b.rstd,
        &b.wq, &b.wk,   &s.sums, &s.dy, &s.x,  &s.wq, &s.wk,  &squares.sums, &squares.x, &squares.wq, &squares.wk})
    place(*t);
  EXPECT_EQ(budget.check(f, b, s, squares), "");
}
#endif
}  // namespace
}  // namespace athanor
