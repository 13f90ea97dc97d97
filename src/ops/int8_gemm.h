// GEMM with int8 weights and activations quantized row by row at run time ("dynamic int8"), with outliers kept in
// floating point [Dettmers et al. 2022, "LLM.int8()"]. For inference on the CPU.
#pragma once
#include <cmath>

#include "ops/op.h"

namespace athanor {

constexpr float kInt8Most = 127;            // quantized values are -127 .. 127
constexpr int kInt8Offset = 128;            // weights are stored as their quantized value plus this
constexpr float kLlmInt8Threshold = 6;      // outlier threshold of the paper
constexpr int64_t kMostInt8Terms = 133144;  // maximum K for which sums of 127 x 127 fit into 32 bits

// Quantizes a value to int8, in f32, rounded to nearest even. inverse: 127 / amax, or 0 if amax is 0.
inline float int8_inverse(float amax) { return amax > 0 ? kInt8Most / amax : 0; }
inline float int8_code(float x, float inverse) {
  const float code = __builtin_rintf(x * inverse);
  return code > kInt8Most ? kInt8Most : code < -kInt8Most ? -kInt8Most : code;
}

// Row i of a has the scale s = amax / 127 and the quantized values q_k = int8_code(a_k). With t_j = scales[j] and
// w_jk = quantized[j, k] - 128,
//   d[i, j] = s t_j sum_k q_k w_jk + sum over outliers k of a_k t_j w_jk + bias[j]
// The first sum is over integers and exact. Outliers of a row are its values with |a_k| >= outlier and non-finite
// values: their q_k is 0, they are excluded from amax, and their products are summed in f32 in order of k. (The paper
// treats a whole column as outliers if any row has one; per-row outliers make a row's result independent of the rest of
// the batch.)
struct Int8Gemm {
  Tensor d;           // [M, N] float
  Tensor a;           // [M, K] float
  Tensor quantized;   // [N, K] u8: quantized weights + 128
  Tensor scales;      // [N] f32
  Tensor bias = {};   // [N] float, optional
  float outlier = 0;  // outlier threshold; 0: only non-finite values are outliers
  static constexpr const char* kName = "int8_gemm";

  int64_t m() const { return d.rows(); }
  int64_t n() const { return d.cols(); }
  int64_t k() const { return a.cols(); }
  // Returns the magnitude from which on values are outliers.
  float limit() const { return outlier > 0 ? outlier : INFINITY; }
  auto fields() {
    return fields_of(Field::out("d", d), Field::in("a", a), Field::in("quantized", quantized),
                     Field::in("scales", scales), Field::in("bias", bias));
  }
  void check() const {
    Expect e{kName};
    e.floating("d", d).matrix("d", d).floating("a", a).matrix("a", a).shape("a", a, {m(), k()});
    e.is("quantized", quantized, DType::u8, {n(), k()}).is("scales", scales, DType::f32, {n()});
    if (bias) e.floating("bias", bias).shape("bias", bias, {n()}).contiguous("bias", bias);
    e.that(k() <= kMostInt8Terms, "sums of integers that fit into 32 bits").that(outlier >= 0, "outlier >= 0");
  }
  Cost cost() const { return {2.0 * double(m()) * double(n()) * double(k()), traffic(*this)}; }
};

}  // namespace athanor
