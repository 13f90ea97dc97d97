// How far two tensors are apart, relative to the size of the expected one, and how far they may be.
#pragma once
#include "tensor/tensor.h"

namespace athanor {

struct Tolerance {
  double nmse;  // sum (got - want)^2 / sum want^2
  double peak;  // max (|got - want| - rounding(dtype) |want|) / rms(want)
};

// Relative error that rounding alone may leave in each element, whatever the others are. Without this term a correct
// elementwise op would fail on tensors with a few elements far above the rms, such as Adam's v: max / rms grows up to
// the root of the number of elements.
double rounding(DType);

// THE table of tolerances, by the dtype of the compared tensor: what backends may differ by when they add in another
// order, keep sums in f32 instead of double, or round 16-bit intermediates. Integers and bytes must be equal.
Tolerance tolerance_of(DType);

struct Difference {
  double nmse = 0, peak = 0;  // infinite where NaN or infinity stand against something else
  int64_t at = 0;             // element (row-major) of the peak, with its values:
  double got = 0, want = 0;
  bool within(const Tolerance& t) const { return nmse <= t.nmse && peak <= t.peak; }
};

// Both in host memory, of the same shape and dtype; rows may be strided.
Difference compare(const Tensor& got, const Tensor& want);

}  // namespace athanor
