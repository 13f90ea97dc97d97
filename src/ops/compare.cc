// Comparison of tensors in double, element by element.
#include "ops/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace athanor {
namespace {

double widen(double x) { return x; }
double widen(int64_t x) { return double(x); }
double widen(int32_t x) { return double(x); }
double widen(int16_t x) { return double(x); }
double widen(uint8_t x) { return double(x); }
template <class T>
double widen(T x) {
  return double(to_float(x));
}

// Returns the absolute difference: 0 for equal values and for two NaNs; infinite if they differ and either is NaN or
// infinite.
double distance(double got, double want) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return 0;
  const double d = std::abs(got - want);
  return std::isfinite(d) ? d : std::numeric_limits<double>::infinity();
}

template <class T>
Difference compare_as(const Tensor& got, const Tensor& want, double scale) {
  const int64_t rows = want.shape.rank == 2 ? want.rows() : 1, cols = rows ? want.numel() / rows : 0;
  const int64_t got_stride = rows > 1 ? got.stride() : 0, want_stride = rows > 1 ? want.stride() : 0;
  const double rounded = rounding(want.dtype);
  double error = 0, power = 0, most = 0, beyond = 0;
  Difference result;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      const double g = widen(got.as<T>()[r * got_stride + c]), w = widen(want.as<T>()[r * want_stride + c]);
      const double d = distance(g, w);
      error += d * d;
      if (std::isfinite(w)) power += w * w;
      const double more = std::isfinite(d) ? std::max(0.0, d - rounded * std::abs(w)) : d;
      if (more > beyond || (beyond == 0 && d > most)) result = {.at = r * cols + c, .got = g, .want = w};
      beyond = std::max(beyond, more);
      most = std::max(most, d);
    }
  power = std::max(power, scale * scale * double(want.numel()));
  if (most > 0) {
    result.nmse = error / power;  // infinite if all expected values are 0
    if (beyond > 0) result.peak = beyond / std::sqrt(power / double(want.numel()));
  }
  return result;
}

}  // namespace

double rounding(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 8 * 0x1p-24;  // allows 8 roundings; AdamW's v has 6: the grad scale enters g^2 twice, 1 - b2 and its
                           // product, b2 v, the sum
    case DType::f16:
      return 0x1p-10;  // f32 results on either side of a rounding tie become neighboring f16 values
    case DType::bf16:
      return 0x1p-7;
    default:
      return 0;
  }
}

Tolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::f32:
      return {1e-11, 3e-5};  // a sum of 1e3 terms in f32 has a relative error of about 1e-6
    case DType::f16:
      return {1e-6, 2e-2};  // half an ulp is 2^-11 of a value, values reach about 4 rms
    case DType::bf16:
      return {2e-5, 1e-1};  // half an ulp is 2^-8
    case DType::i16: {      // remainders are the last bits of f32; tests that depend on them compare bits
      constexpr double kAny = std::numeric_limits<double>::infinity();
      return {kAny, kAny};
    }
    default:
      return {0, 0};
  }
}

Difference compare(const Tensor& got, const Tensor& want, double scale) {
  CHECK(got.dtype == want.dtype && got.shape == want.shape, "comparing ", got.dtype, " ", got.shape, " with ",
        want.dtype, " ", want.shape);
  switch (want.dtype) {
    case DType::f64:
      return compare_as<double>(got, want, scale);
    case DType::i64:
      return compare_as<int64_t>(got, want, scale);
    case DType::i32:
      return compare_as<int32_t>(got, want, scale);
    case DType::i16:
      return compare_as<int16_t>(got, want, scale);
    case DType::u8:
      return compare_as<uint8_t>(got, want, scale);
    case DType::f8_e4m3:
      return compare_as<f8_e4m3>(got, want, scale);
    case DType::f8_e5m2:
      return compare_as<f8_e5m2>(got, want, scale);
    case DType::f8_e8m0:
      return compare_as<e8m0>(got, want, scale);
    case DType::f4_e2m1:
      return compare_as<f4_e2m1>(got, want, scale);
    default:
      return by_float(want.dtype, [&]<class T>() { return compare_as<T>(got, want, scale); });
  }
}

}  // namespace athanor
