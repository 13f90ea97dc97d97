// Conversion between tensors and Values; the only code of the reference that handles row strides.
#include "reference/values.h"

#include <cmath>

namespace athanor {
namespace {

double widen(double x) { return x; }
template <class T>
double widen(T x) {
  return double(to_float(x));
}

template <class T>
T rounded(double x) {
  return from_float<T>(float(x));
}
template <>
double rounded<double>(double x) {
  return x;
}
template <>
e8m0 rounded<e8m0>(double x) {
  return as_e8m0(float(x));
}

// Calls fn(T& element, index in Values) for each element of t.
template <class T, class Fn>
void each_element(const Tensor& t, Fn&& fn) {
  const int64_t rows = t.shape.rank == 2 ? t.rows() : 1, cols = rows ? t.numel() / rows : 0;
  const int64_t stride = t.shape.rank == 2 ? t.stride() : 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) fn(t.as<T>()[r * stride + c], r * cols + c);
}

template <class Fn>
void by_real(DType dtype, Fn&& fn) {
  if (dtype == DType::f64)
    fn.template operator()<double>();
  else if (dtype == DType::f8_e8m0)
    fn.template operator()<e8m0>();
  else if (is_code(dtype))
    by_code(dtype, fn);
  else
    by_float(dtype, fn);
}

}  // namespace

Values zeros_like(const Tensor& t) { return t.shape.rank == 2 ? Values(t.rows(), t.cols()) : Values(1, t.numel()); }

Values load(const Tensor& t) {
  Values out = zeros_like(t);
  by_real(t.dtype, [&]<class T>() { each_element<T>(t, [&](const T& x, int64_t i) { out[i] = widen(x); }); });
  return out;
}

void store(const Tensor& t, const Values& values) {
  CHECK(values.size() == t.numel(), "storing ", values.size(), " values in ", t.shape);
  by_real(t.dtype, [&]<class T>() { each_element<T>(t, [&](T& x, int64_t i) { x = rounded<T>(values[i]); }); });
}

void store_amax(const Tensor& amax, const Tensor& of) {
  if (!amax) return;
  double most = 0;
  for (const double x : load(of).v)
    if (std::isnan(x) || std::abs(x) > most) most = std::abs(x);  // NaN counts as the maximum
  *amax.as<float>() = float(most);
}

}  // namespace athanor
