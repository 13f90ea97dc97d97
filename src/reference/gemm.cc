// GEMM and column sums, from their definitions.
#include "reference/gemm.h"

#include "reference/reference_ops.h"

namespace athanor {
namespace {

Values transposed(const Values& x) {
  Values t(x.cols, x.rows);
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t j = 0; j < x.cols; ++j) t(j, i) = x(i, j);
  return t;
}

// Returns the operand as the GEMM reads it: TF32-rounded if requested.
Values factor(const Tensor& t, bool tf32) {
  Values x = load(t);
  if (tf32 && t.dtype == DType::f32)
    for (double& v : x.v) v = round_tf32(float(v));
  return x;
}

}  // namespace

void multiply(const Gemm& op, Values a, Values b) {
  if (op.ta) a = transposed(a);                                     // [M, K]
  if (op.tb) b = transposed(b);                                     // [K, N]
  Values d = op.accumulate ? load(op.d) : zeros_like(op.d);         // [M, N]
  const Values bias = op.bias ? load(op.bias) : Values(1, d.cols);  // [N]
  for (int64_t i = 0; i < d.rows; ++i) {
    for (int64_t j = 0; j < d.cols; ++j) d(i, j) += bias[j];
    for (int64_t k = 0; k < a.cols; ++k)
      for (int64_t j = 0; j < d.cols; ++j) d(i, j) += a(i, k) * b(k, j);
  }
  store(op.d, d);
}

void ReferenceOps::run(const Gemm& op, void*) {
  if (op.epilogue != Epilogue::none) return in_parts(op, [&](const auto& part) { run(part, nullptr); });
  multiply(op, factor(op.a, op.tf32), factor(op.b, op.tf32));
}

void ReferenceOps::run(const ColumnSum& op, void*) {
  const Values x = load(op.x);  // [N, C]
  Values out = load(op.out);    // [C]
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t c = 0; c < x.cols; ++c) out[c] += x(i, c);
  store(op.out, out);
}

}  // namespace athanor
