// DoRA [Liu et al. 2024]: the outputs of W + s B A are divided by the norms of its rows and scaled by learned
// magnitudes. Gradients treat the norms as constants, as in the paper's sec. 4.3.
#pragma once
#include "ops/op.h"

namespace athanor {

// y = x m / sqrt(squares) [+ bias] [+ y] per column, in f32, rounded once. Without magnitudes the factor m /
// sqrt(squares) is 1. The factor is computed in double and rounded to f32.
struct ScaleByMagnitude {
  Tensor y;               // [N, O]; may be x's memory; rows may be strided
  Tensor x;               // [N, O]; rows may be strided
  Tensor magnitude = {};  // optional [O] float
  Tensor squares = {};    // [O] f64; present exactly if `magnitude` is
  Tensor bias = {};       // optional [O] float
  bool accumulate = false;
  static constexpr const char* kName = "scale_by_magnitude";

  auto fields() {
    return fields_of(Field{"y", accumulate ? Io::inout : Io::out, &y}, Field::in("x", x),
                     Field::in("magnitude", magnitude), Field::in("squares", squares), Field::in("bias", bias));
  }
  void check() const {
    Expect e{kName};
    e.floating("y", y).matrix("y", y).view("x", x, y.dtype, y.shape);
    e.that(bool(magnitude) == bool(squares), "magnitude exactly with squares");
    if (magnitude)
      e.floating("magnitude", magnitude)
          .is("magnitude", magnitude, magnitude.dtype, {y.cols()})
          .is("squares", squares, DType::f64, {y.cols()});
    if (bias) e.floating("bias", bias).is("bias", bias, bias.dtype, {y.cols()});
  }
  Cost cost() const { return {3.0 * double(y.numel()), traffic(*this)}; }
};

// dx = dy m / sqrt(squares); dm += sum over rows of dy x / sqrt(squares), in f32 or wider, in an order that depends
// only on the shapes.
struct ScaleByMagnitudeBwd {
  Tensor dx;         // [N, O]; may be dy's memory; rows may be strided
  Tensor dm;         // [O] f32 or bf16, accumulates
  Tensor dy, x;      // [N, O]; rows may be strided
  Tensor magnitude;  // [O] float
  Tensor squares;    // [O] f64
  static constexpr const char* kName = "scale_by_magnitude_bwd";

  auto fields() {
    return fields_of(Field::out("dx", dx), Field::inout("dm", dm), Field::in("dy", dy), Field::in("x", x),
                     Field::in("magnitude", magnitude), Field::in("squares", squares));
  }
  void check() const {
    Expect e{kName};
    e.floating("dy", dy).matrix("dy", dy).view("dx", dx, dy.dtype, dy.shape).view("x", x, dy.dtype, dy.shape);
    e.gradient("dm", dm, {dy.cols()}).floating("magnitude", magnitude);
    e.is("magnitude", magnitude, magnitude.dtype, {dy.cols()}).is("squares", squares, DType::f64, {dy.cols()});
  }
  Cost cost() const { return {4.0 * double(dy.numel()), traffic(*this)}; }
};

}  // namespace athanor
