// Feed-forward activations other than those of ops/mlp.h, gated or not, and sums scaled by learned scalars.
#pragma once
#include "base/choices.h"
#include "ops/op.h"

namespace athanor {

// Not gated: y = f(x), x [N, F]. Gated: y = f(gate) up, x = [gate | up] [N, 2F] [Shazeer 2020, eq. 5, 6].
//   gelu      0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))   [Hendrycks & Gimpel 2016, sec. 2; tanh form]
//   gelu_erf  0.5 x (1 + erf(x / sqrt(2)))                      [as above, exact form]
//   silu      x / (1 + exp(-x))
//   relu      max(x, 0)
//   relu2     max(x, 0)^2                                       [So et al. 2021, "Primer", sec. 4.1]
struct ActivationFwd {
  Activation f = Activation::relu2;
  Tensor y;          // [N, F]
  Tensor x;          // [N, F] or [N, 2F]
  Tensor amax = {};  // optional [1] f32: amax of y; see ops/norm.h
  bool gated() const { return x.cols() != y.cols(); }
  static constexpr const char* kName = "activation_fwd";
  auto fields() { return fields_of(Field::out("y", y), Field::in("x", x), Field::out("amax", amax)); }
  void check() const {
    Expect{kName}.floating("x", x).matrix("x", x).matrix("y", y);
    Expect{kName}
        .is("x", x, x.dtype, {y.rows(), gated() ? 2 * y.cols() : y.cols()})
        .is("y", y, x.dtype, y.shape)
        .amax("amax", amax);
  }
  Cost cost() const { return {10.0 * double(y.numel()), traffic(*this)}; }
};

// Calls run.operator()<f>().
template <class Run>
void by_activation(Activation f, Run run) {
  switch (f) {
    case Activation::gelu:
      return run.template operator()<Activation::gelu>();
    case Activation::silu:
      return run.template operator()<Activation::silu>();
    case Activation::relu:
      return run.template operator()<Activation::relu>();
    case Activation::relu2:
      return run.template operator()<Activation::relu2>();
    case Activation::gelu_erf:
      return run.template operator()<Activation::gelu_erf>();
  }
}

// Gradient of ActivationFwd; the derivative of relu at 0 is 0.
struct ActivationBwd {
  Activation f = Activation::relu2;
  Tensor dx;         // shape of x; may be x's memory, or dy's if not gated
  Tensor dy;         // [N, F]
  Tensor x;          // [N, F] or [N, 2F]
  Tensor amax = {};  // optional [1] f32: amax of dx
  bool gated() const { return x.cols() != dy.cols(); }
  static constexpr const char* kName = "activation_bwd";
  auto fields() {
    return fields_of(Field::out("dx", dx), Field::in("dy", dy), Field::in("x", x), Field::out("amax", amax));
  }
  void check() const {
    Expect{kName}.floating("x", x).matrix("x", x).matrix("dy", dy);
    Expect{kName}
        .is("x", x, x.dtype, {dy.rows(), gated() ? 2 * dy.cols() : dy.cols()})
        .is("dx", dx, x.dtype, x.shape)
        .is("dy", dy, x.dtype, dy.shape)
        .amax("amax", amax);
  }
  Cost cost() const { return {15.0 * double(dy.numel()), traffic(*this)}; }
};

// y = a x + b z, in f32, rounded once; an absent a or b counts as 1. For learned scalars of the residual stream.
struct ScaledSum {
  Tensor y, x, z;  // [N, C]; y may be x's or z's memory
  Tensor a, b;     // optional [1] float
  static constexpr const char* kName = "scaled_sum";
  auto fields() {
    return fields_of(Field::out("y", y), Field::in("x", x), Field::in("z", z), Field::in("a", a), Field::in("b", b));
  }
  void check() const {
    Expect e{kName};
    e.float_matrix("x", x).is("y", y, x.dtype, x.shape).is("z", z, x.dtype, x.shape);
    if (a) e.floating("a", a).is("a", a, a.dtype, {1});
    if (b) e.floating("b", b).is("b", b, b.dtype, {1});
  }
  Cost cost() const { return {3.0 * double(x.numel()), traffic(*this)}; }
};

// dx = a dy, dz += b dy; da += sum(dy x), db += sum(dy z); both sums are in double in a fixed order.
struct ScaledSumBwd {
  Tensor dx;      // [N, C]; may be dy's memory
  Tensor dz;      // [N, C], accumulates
  Tensor da, db;  // [1] f32 or bf16, accumulate; present exactly if a and b are
  Tensor dy;      // [N, C]
  Tensor x, z;    // [N, C]
  Tensor a, b;    // optional [1] float
  static constexpr const char* kName = "scaled_sum_bwd";
  auto fields() {
    return fields_of(Field::out("dx", dx), Field::inout("dz", dz), Field::inout("da", da), Field::inout("db", db),
                     Field::in("dy", dy), Field::in("x", x), Field::in("z", z), Field::in("a", a), Field::in("b", b));
  }
  void check() const {
    Expect e{kName};
    e.float_matrix("dy", dy).is("dx", dx, dy.dtype, dy.shape);
    e.is("dz", dz, dy.dtype, dy.shape).is("x", x, dy.dtype, dy.shape).is("z", z, dy.dtype, dy.shape);
    e.that(bool(a) == bool(da) && bool(b) == bool(db), "da exactly with a, and db exactly with b");
    if (a) e.floating("a", a).is("a", a, a.dtype, {1}).gradient("da", da, {1});
    if (b) e.floating("b", b).is("b", b, b.dtype, {1}).gradient("db", db, {1});
  }
  Cost cost() const { return {7.0 * double(x.numel()), traffic(*this)}; }
};

}  // namespace athanor
