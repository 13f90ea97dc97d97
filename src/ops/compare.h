// Difference between two tensors relative to the expected one, and tolerances.
#pragma once
#include "tensor/tensor.h"

namespace athanor {

struct Tolerance {
  double nmse;  // sum (got - want)^2 / sum want^2
  double peak;  // max (|got - want| - rounding(dtype) |want|) / rms(want)
};

// Relative error that rounding alone may cause in each element. Without this term a correct elementwise op would fail
// on tensors with a few elements far above the rms, such as Adam's v: max / rms grows up to the square root of the
// number of elements.
double rounding(DType);

// The table of tolerances, by dtype of the compared tensor: how far backends may differ because they sum in another
// order, compute in f32 instead of double, or round 16-bit intermediates. Integers and bytes must be equal.
Tolerance tolerance_of(DType);

// Returns the tolerance of an op's result: the op's own `Tolerance tolerance(DType) const` if it has one, else that of
// the dtype.
template <class Op>
Tolerance tolerance_of(const Op& op, DType dtype) {
  if constexpr (requires { op.tolerance(dtype); }) {
    return op.tolerance(dtype);
  } else {
    return tolerance_of(dtype);
  }
}

// Returns the size below which an output's rms does not count as its scale: the op's own `double scale_of(name) const`,
// for outputs that are small differences of larger quantities, else 0.
template <class Op>
double scale_of(const Op& op, const char* output) {
  if constexpr (requires { op.scale_of(output); }) {
    return op.scale_of(output);
  } else {
    return 0;
  }
}

struct Difference {
  double nmse = 0, peak = 0;  // infinite if one side is NaN or infinite and the other differs
  int64_t at = 0;             // row-major index of the element with the largest error, and its values:
  double got = 0, want = 0;
  bool within(const Tolerance& t) const { return nmse <= t.nmse && peak <= t.peak; }
};

// Both tensors are in host memory, with equal shape and dtype; rows may be strided. Differences are divided by the rms
// of `want`, or by `scale` where that is larger.
Difference compare(const Tensor& got, const Tensor& want, double scale = 0);

}  // namespace athanor
