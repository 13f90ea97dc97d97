// Matrix product with fused bias and accumulation. Row-major. Strided rank-2 views are allowed for d, a and b.
#pragma once
#include "ops/op.h"

namespace athanor {

// d = op(a) op(b) [+ bias] [+ d]; op transposes where ta/tb. Sums in f32; the result is rounded once to d's dtype.
struct Gemm {
  Tensor d;          // [M, N]; f32, bf16 or f16
  Tensor a;          // [M, K], or [K, M] with ta
  Tensor b;          // [K, N], or [N, K] with tb
  Tensor bias = {};  // [N], optional; not together with accumulate
  bool ta = false, tb = false;
  bool accumulate = false;  // add to d
  bool tf32 = false;        // round f32 inputs to TF32 first (round_tf32), as tensor cores do
  static constexpr const char* kName = "gemm";

  int64_t m() const { return d.rows(); }
  int64_t n() const { return d.cols(); }
  int64_t k() const { return ta ? a.rows() : a.cols(); }
  std::array<Field, 4> fields() {
    return {
        {{"d", accumulate ? Io::inout : Io::out, &d}, {"a", Io::in, &a}, {"b", Io::in, &b}, {"bias", Io::in, &bias}}};
  }
  void check() const {
    Expect e{kName};
    e.floating("d", d).matrix("d", d).floating("a", a).floating("b", b);
    e.shape("a", a, ta ? Shape{k(), m()} : Shape{m(), k()}).shape("b", b, tb ? Shape{n(), k()} : Shape{k(), n()});
    if (bias)
      e.floating("bias", bias)
          .shape("bias", bias, {n()})
          .contiguous("bias", bias)
          .that(!accumulate, "no bias when accumulating");
  }
  Cost cost() const { return {2.0 * double(m()) * double(n()) * double(k()), traffic(*this)}; }
};

// out += column sums of x (bias gradient). Fixed order of sums, whatever the number of threads.
struct ColumnSum {
  Tensor out;  // [C] f32
  Tensor x;    // [N, C]
  static constexpr const char* kName = "column_sum";
  std::array<Field, 2> fields() { return {{{"out", Io::inout, &out}, {"x", Io::in, &x}}}; }
  void check() const {
    Expect{kName}.floating("x", x).matrix("x", x).contiguous("x", x).is("out", out, DType::f32, {x.cols()});
  }
  Cost cost() const { return {double(x.numel()), traffic(*this)}; }
};

}  // namespace athanor
