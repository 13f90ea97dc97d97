// GEMM with weights in 8 bits and activations that are quantized row by row as they come ("dynamic int8"), and with
// outliers apart [Dettmers et al. 2022, "LLM.int8()"]. For inference on the CPU.
#pragma once
#include <cmath>

#include "ops/op.h"

namespace athanor {

constexpr float kInt8Most = 127;            // codes are -127 .. 127
constexpr int kInt8Offset = 128;            // a weight is stored as its code plus this
constexpr float kLlmInt8Threshold = 6;      // of outliers, the paper's
constexpr int64_t kMostInt8Terms = 133144;  // sums of 127 x 127 that fit into 32 bits

// The code of a value, in f32: to nearest even. inverse: 127 / amax, or 0 where amax is 0.
inline float int8_inverse(float amax) { return amax > 0 ? kInt8Most / amax : 0; }
inline float int8_code(float x, float inverse) {
  const float code = __builtin_rintf(x * inverse);
  return code > kInt8Most ? kInt8Most : code < -kInt8Most ? -kInt8Most : code;
}

// Row i of a has the scale s = amax / 127 of its values and the codes q_k = int8_code(a_k). With t_j = scales[j] and
// w_jk = codes[j, k] - 128,
//   d[i, j] = s t_j sum_k q_k w_jk + sum over outliers k of a_k t_j w_jk + bias[j]
// The first sum is of integers and exact. Outliers of a row are its values with |a_k| >= outlier, and those that are
// not finite: q_k is 0 for them, they do not count into amax, and their products are summed in f32, in order of k. (The
// paper takes a column as a whole where any row has an outlier; by rows, no result depends on what else is in a batch.)
struct Int8Gemm {
  Tensor d;           // [M, N] float
  Tensor a;           // [M, K] float
  Tensor codes;       // [N, K] u8: those of the weight + 128
  Tensor scales;      // [N] f32
  Tensor bias = {};   // [N] float, optional
  float outlier = 0;  // 0: only values that are not finite
  static constexpr const char* kName = "int8_gemm";

  int64_t m() const { return d.rows(); }
  int64_t n() const { return d.cols(); }
  int64_t k() const { return a.cols(); }
  // Magnitudes from here on are outliers.
  float limit() const { return outlier > 0 ? outlier : INFINITY; }
  std::array<Field, 5> fields() {
    return {{{"d", Io::out, &d},
             {"a", Io::in, &a},
             {"codes", Io::in, &codes},
             {"scales", Io::in, &scales},
             {"bias", Io::in, &bias}}};
  }
  void check() const {
    Expect e{kName};
    e.floating("d", d).matrix("d", d).floating("a", a).matrix("a", a).shape("a", a, {m(), k()});
    e.is("codes", codes, DType::u8, {n(), k()}).is("scales", scales, DType::f32, {n()});
    if (bias) e.floating("bias", bias).shape("bias", bias, {n()}).contiguous("bias", bias);
    e.that(k() <= kMostInt8Terms, "sums of integers that fit into 32 bits").that(outlier >= 0, "outlier >= 0");
  }
  Cost cost() const { return {2.0 * double(m()) * double(n()) * double(k()), traffic(*this)}; }
};

}  // namespace athanor
