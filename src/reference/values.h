// Values: the elements of a tensor as double, contiguous and row-major. The reference loads Values, computes, and
// stores them. Only storing rounds: double to f32 (the arithmetic of every backend), then to the tensor's dtype, both
// to nearest even.
#pragma once
#include <cmath>
#include <limits>
#include <vector>

#include "tensor/tensor.h"

namespace athanor {

struct Values {
  int64_t rows = 1, cols = 0;
  std::vector<double> v;  // [rows, cols]

  Values(int64_t r, int64_t c) : rows(r), cols(c), v(size_t(r * c)) {}
  double& operator()(int64_t r, int64_t c) { return v[size_t(r * cols + c)]; }
  double operator()(int64_t r, int64_t c) const { return v[size_t(r * cols + c)]; }
  double& operator[](int64_t i) { return v[size_t(i)]; }
  double operator[](int64_t i) const { return v[size_t(i)]; }
  int64_t size() const { return rows * cols; }
};

Values zeros_like(const Tensor&);  // rank 2 keeps its shape; other ranks become one row
Values load(const Tensor&);        // float dtypes, including FP8 and FP4, and f64
void store(const Tensor&, const Values&);
void store_amax(const Tensor& amax, const Tensor& of);  // amax: [1] f32 or absent; NaN counts as the maximum

// Formulas shared by several ops, in double.
inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double capped(double logit, float softcap) {
  return softcap == 0 ? logit : double(softcap) * std::tanh(logit / double(softcap));
}
// Value to subtract from logits before exp(), given their maximum; 0 for -inf, since -inf - -inf is NaN.
inline double exponent_base(double max) { return max == -std::numeric_limits<double>::infinity() ? 0 : max; }

}  // namespace athanor
