// GEMM with fused bias, accumulation and epilogue. Row-major. d, a and b may be strided rank-2 views.
#pragma once
#include "ops/attention.h"
#include "ops/basic.h"
#include "ops/compare.h"
#include "ops/mlp.h"
#include "ops/op.h"

namespace athanor {

// Work fused into a GEMM, with a second tensor `aux`. Saves one pass over memory.
enum class Epilogue : uint8_t {
  none,
  add,            // d = z + aux (residual); aux [M, N]
  gelu,           // aux = z, d = gelu(aux); both [M, N]
  gelu_gradient,  // d = z gelu'(aux); aux [M, N]
  sum_a,          // aux [M] f32 or bf16 += sums of op(a) over k, the bias gradient in a wgrad GEMM; requires ta
  sum_b,          // aux [N] f32 or bf16 += sums of op(b) over k; requires !tb
  swiglu,         // d = z = [gate | up], aux = silu(gate) up computed from the rounded d; aux [M, N/2]
  // aux = [gate | up] [M, 2N] becomes its own gradient, with the rounded z as gradient of silu(gate) up; d = silu(gate)
  // up
  swiglu_gradient,
  rope  // d = z with its first `rotated` columns rotated (Rope); aux [P, D] f32 is the cos/sin table of one head
};

// z = op(a) op(b) [+ bias] [+ d]; op transposes if ta or tb. Accumulates in f32; the result is rounded once to d's
// dtype. d is z or the result of the epilogue. in_parts() below defines the epilogues. A backend may apply one to z
// before rounding, but then in every run of the op, also with `recompute`. Exceptions that always read the rounded z:
// SwiGLU, so that it can be recomputed from d; its gradient; and RoPE.
struct Gemm {
  Tensor d;               // [M, N]; f32, bf16 or f16
  Tensor a;               // [M, K], or [K, M] with ta
  Tensor b;               // [K, N], or [N, K] with tb
  Tensor bias = {};       // [N], optional; not together with accumulate
  Tensor aux = {};        // second tensor of the epilogue; if aux is [M, N], it has d's layout and d is contiguous
  Tensor positions = {};  // rope only: [M] i32, each < P
  int64_t rotated = 0;    // rope only: number of leading columns to rotate, whole heads
  Epilogue epilogue = Epilogue::none;
  bool ta = false, tb = false;
  bool accumulate = false;  // add to d
  bool tf32 = false;        // round f32 inputs to TF32 first (round_tf32), as tensor cores do
  bool symmetric = false;   // d is known to be bitwise symmetric, so a backend may compute one triangle and copy it
  bool recompute = false;   // gelu only: `aux` holds z of an earlier run; computes only d, bit-identically
  static constexpr const char* kName = "gemm";

  int64_t m() const { return d.rows(); }
  int64_t n() const { return d.cols(); }
  int64_t k() const { return ta ? a.rows() : a.cols(); }
  bool sums() const { return epilogue == Epilogue::sum_a || epilogue == Epilogue::sum_b; }
  std::array<Field, 6> fields() {
    const bool writes = (epilogue == Epilogue::gelu && !recompute) || epilogue == Epilogue::swiglu;
    const Io io = sums() || epilogue == Epilogue::swiglu_gradient ? Io::inout : writes ? Io::out : Io::in;
    return {{{"d", accumulate ? Io::inout : Io::out, &d},
             {"a", Io::in, &a},
             {"b", Io::in, &b},
             {"bias", Io::in, &bias},
             {"aux", io, &aux},
             {"positions", Io::in, &positions}}};
  }
  // Tolerance of f32 results. TF32: a library may round or truncate operands, or use them in full precision. 16-bit
  // operands: tensor cores truncate the terms of each K step of 16 to the unit in the last place of the sum.
  Tolerance tolerance(DType result) const {
    const Tolerance t = tolerance_of(result);
    if (result != DType::f32) return t;
    if (a.dtype == DType::f32) return tf32 ? Tolerance{1e-6, 1e-2} : t;
    const double cut = double(k()) / 16 * 0x1p-24;
    return {std::max(t.nmse, cut * cut), std::max(t.peak, 8 * cut)};
  }
  void check() const {
    Expect e{kName};
    e.floating("a", a).floating("b", b);
    check_result(e);
  }
  // Checks everything except the dtypes of the operands.
  void check_result(const Expect& e) const {
    e.floating("d", d).matrix("d", d);
    e.shape("a", a, ta ? Shape{k(), m()} : Shape{m(), k()}).shape("b", b, tb ? Shape{n(), k()} : Shape{k(), n()});
    if (bias)
      e.floating("bias", bias)
          .shape("bias", bias, {n()})
          .contiguous("bias", bias)
          .that(!accumulate, "no bias when accumulating");
    if (symmetric)
      e.that(m() == n() && !bias && !accumulate && epilogue == Epilogue::none,
             "with `symmetric`, a square d without bias, accumulation or epilogue");
    check_epilogue(e);
  }
  void check_epilogue(const Expect& e) const {
    e.that(bool(aux) == (epilogue != Epilogue::none), "aux exactly with an epilogue")
        .that(!recompute || epilogue == Epilogue::gelu, "recompute only with epilogue gelu")
        .that(bool(positions) == (epilogue == Epilogue::rope), "positions exactly with epilogue rope");
    if (epilogue == Epilogue::none) return;
    if (epilogue == Epilogue::rope) {
      const auto heads = [&](int64_t dim) { return dim > 0 && dim % 2 == 0 && rotated > 0 && rotated % dim == 0; };
      e.dtype("aux", aux, DType::f32).matrix("aux", aux).contiguous("aux", aux);
      e.that(heads(aux.cols()) && rotated <= n(), "aux", "angles of whole heads of an even size")
          .is("positions", positions, DType::i32, {m()})
          .that(!accumulate, "no accumulation with this epilogue");
    } else if (sums()) {
      const bool of_a = epilogue == Epilogue::sum_a;
      e.gradient("aux", aux, {of_a ? m() : n()})
          .contiguous(of_a ? "a" : "b", of_a ? a : b)
          .that(of_a ? ta : !tb, "an operand stored with K as rows")
          .that(!bias, "no bias together with sums");
    } else {
      const bool halves = epilogue == Epilogue::swiglu, twice = epilogue == Epilogue::swiglu_gradient;
      const int64_t columns = halves ? n() / 2 : n() * (twice ? 2 : 1);
      e.contiguous("d", d)
          .that(!halves || n() % 2 == 0, "as many gate columns as up columns")
          .is("aux", aux, d.dtype, {m(), columns})
          .that(!accumulate, "no accumulation with this epilogue");
      e.that(!bias || (epilogue != Epilogue::gelu_gradient && !twice), "no bias with a gradient epilogue");
    }
  }
  Rope rotation() const {
    return {.x = d.columns(0, rotated),
            .cos_sin = aux,
            .positions = positions,
            .heads = rotated / aux.cols(),
            .head_dim = aux.cols()};
  }
  // Bytes of matrices that the epilogue reads and writes in addition to d.
  double epilogue_bytes() const {
    if (epilogue == Epilogue::none || epilogue == Epilogue::rope || sums() || recompute) return 0;
    return double(aux.bytes()) * (epilogue == Epilogue::swiglu_gradient ? 2 : 1);
  }
  Cost cost() const {
    if (recompute) return GeluFwd{.y = d, .x = aux}.cost();
    return {2.0 * double(m()) * double(n()) * double(k()), traffic(*this)};
  }
};

// out += column sums of x (bias gradient). Fixed summation order for any number of threads.
struct ColumnSum {
  Tensor out;  // [C] f32 or bf16
  Tensor x;    // [N, C]
  static constexpr const char* kName = "column_sum";
  auto fields() { return fields_of(Field::inout("out", out), Field::in("x", x)); }
  void check() const { Expect{kName}.float_matrix("x", x).gradient("out", out, {x.cols()}); }
  Cost cost() const { return {double(x.numel()), traffic(*this)}; }
};

// Defines the epilogues: run() gets the plain GEMM, then the op of the epilogue, which reads the rounded values that
// the GEMM stored.
template <class Run>
void in_parts(const Gemm& op, Run&& run) {
  Gemm gemm = op;
  gemm.epilogue = Epilogue::none;
  gemm.aux = gemm.positions = {};
  gemm.rotated = 0;
  gemm.recompute = false;
  if (op.epilogue == Epilogue::gelu) gemm.d = op.aux;
  if (!op.recompute) run(gemm);
  switch (op.epilogue) {
    case Epilogue::none:
      break;
    case Epilogue::add:
      run(Add{.y = op.d, .a = op.d, .b = op.aux});
      break;
    case Epilogue::gelu:
      run(GeluFwd{.y = op.d, .x = op.aux});
      break;
    case Epilogue::gelu_gradient:
      run(GeluBwd{.dx = op.d, .dy = op.d, .x = op.aux});
      break;
    case Epilogue::sum_a:
      run(ColumnSum{.out = op.aux, .x = op.a});
      break;
    case Epilogue::sum_b:
      run(ColumnSum{.out = op.aux, .x = op.b});
      break;
    case Epilogue::swiglu:
      run(SwigluFwd{.y = op.aux, .gu = op.d});
      break;
    case Epilogue::swiglu_gradient:
      run(SwigluBwd{.dgu = op.aux, .dy = op.d, .gu = op.aux, .y = op.d});
      break;
    case Epilogue::rope:
      run(op.rotation());
      break;
  }
}

}  // namespace athanor
