// Activation functions of the feed-forward layers.
#pragma once
#include "ops/op.h"

namespace athanor {

// y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))   [Hendrycks & Gimpel 2016, sec. 2; tanh form]
struct GeluFwd {
  Tensor y, x;       // [N, F]
  Tensor amax = {};  // optional [1] f32: amax of y; see ops/norm.h
  static constexpr const char* kName = "gelu_fwd";
  auto fields() { return fields_of(Field::out("y", y), Field::in("x", x), Field::out("amax", amax)); }
  void check() const {
    Expect{kName}.floating("x", x).contiguous("x", x).is("y", y, x.dtype, x.shape).amax("amax", amax);
  }
  Cost cost() const { return {10.0 * double(x.numel()), traffic(*this)}; }
};

struct GeluBwd {
  Tensor dx, dy, x;  // [N, F]; dx may be dy's memory
  Tensor amax = {};  // optional [1] f32: amax of dx
  static constexpr const char* kName = "gelu_bwd";
  auto fields() {
    return fields_of(Field::out("dx", dx), Field::in("dy", dy), Field::in("x", x), Field::out("amax", amax));
  }
  void check() const {
    Expect{kName}.floating("x", x).contiguous("x", x).is("dx", dx, x.dtype, x.shape).is("dy", dy, x.dtype, x.shape);
    Expect{kName}.amax("amax", amax);
  }
  Cost cost() const { return {15.0 * double(x.numel()), traffic(*this)}; }
};

// y = silu(gate) up, gu = [gate | up]                   [Shazeer 2020, eq. 5]
struct SwigluFwd {
  Tensor y;          // [N, F]
  Tensor gu;         // [N, 2F]
  Tensor amax = {};  // optional [1] f32: amax of y
  static constexpr const char* kName = "swiglu_fwd";
  auto fields() { return fields_of(Field::out("y", y), Field::in("gu", gu), Field::out("amax", amax)); }
  void check() const {
    Expect{kName}
        .floating("gu", gu)
        .is("gu", gu, gu.dtype, {gu.rows(), 2 * y.cols()})
        .is("y", y, gu.dtype, {gu.rows(), y.cols()})
        .amax("amax", amax);
  }
  Cost cost() const { return {6.0 * double(y.numel()), traffic(*this)}; }
};

struct SwigluBwd {
  Tensor dgu;        // [N, 2F]; may be gu's memory
  Tensor dy;         // [N, F]
  Tensor gu;         // [N, 2F]
  Tensor amax = {};  // optional [1] f32: amax of dgu
  Tensor y = {};     // optional [N, F]: recomputed output of SwigluFwd, bit-identical; may be dy's memory
  static constexpr const char* kName = "swiglu_bwd";
  auto fields() {
    return fields_of(Field::out("dgu", dgu), Field::in("dy", dy), Field::in("gu", gu), Field::out("amax", amax),
                     Field::out("y", y));
  }
  void check() const {
    Expect{kName}
        .floating("gu", gu)
        .is("gu", gu, gu.dtype, {gu.rows(), 2 * dy.cols()})
        .is("dgu", dgu, gu.dtype, gu.shape)
        .is("dy", dy, gu.dtype, {gu.rows(), dy.cols()})
        .amax("amax", amax);
    if (y) Expect{kName}.is("y", y, gu.dtype, dy.shape);
  }
  Cost cost() const { return {(y ? 14.0 : 12.0) * double(dy.numel()), traffic(*this)}; }
};

}  // namespace athanor
