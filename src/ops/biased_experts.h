// Biases of experts and the clamped activation of GPT-OSS [OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", sec.
// 2.2; transformers' modeling_gpt_oss.py], on the sorted rows of ops/moe.h.
#pragma once
#include "ops/op.h"

namespace athanor {

// Checks the tensors of both ops; name: that of the rows.
inline void expect_biased_rows(const Expect& e, const char* name, const Tensor& x, const Tensor& bias,
                               const Tensor& offsets, const Tensor& weights, const Tensor& slots) {
  e.float_matrix(name, x).is("offsets", offsets, DType::i32, {offsets.numel()});
  e.that(offsets.numel() >= 2, "offsets", "at least one expert");
  e.is("bias", bias, x.dtype, {offsets.numel() - 1, x.cols()});
  e.that(bool(weights) == bool(slots), "slots", "exactly with weights");
  if (!weights) return;
  e.is("weights", weights, DType::f32, weights.shape).that(weights.numel() == x.rows(), "weights", "one for each row");
  e.is("slots", slots, DType::i32, {x.rows()});
}

// x[r] += w bias[e] for each row r of an expert e, w = weights[slots[r]], or 1 without weights. Rows of no expert do
// not change.
struct AddExpertBias {
  Tensor x;             // [R, C]
  Tensor bias;          // [E, C]
  Tensor offsets;       // [E + 1] i32: expert e has rows [offsets[e], offsets[e + 1])
  Tensor weights = {};  // [N, k] f32, optional
  Tensor slots = {};    // [R] i32, with weights
  static constexpr const char* kName = "add_expert_bias";
  auto fields() {
    return fields_of(Field::inout("x", x), Field::in("bias", bias), Field::in("offsets", offsets),
                     Field::in("weights", weights), Field::in("slots", slots));
  }
  int64_t experts() const { return offsets.numel() - 1; }
  void check() const { expect_biased_rows(Expect{kName}, "x", x, bias, offsets, weights, slots); }
  Cost cost() const { return {2.0 * double(x.numel()), traffic(*this)}; }
};

// dbias[e] += sum over the rows r of expert e of w dx[r], in a fixed order; dweights[slots[r]] += dx[r] . bias[e].
struct AddExpertBiasBwd {
  Tensor dbias;          // [E, C] f32 or bf16; absent if the bias is frozen
  Tensor dweights = {};  // [N, k] f32, exactly with weights
  Tensor dx;             // [R, C]: gradient of the sum, which is also that of x
  Tensor bias;           // [E, C]
  Tensor offsets;        // [E + 1] i32
  Tensor weights = {};   // [N, k] f32, optional
  Tensor slots = {};     // [R] i32, with weights
  static constexpr const char* kName = "add_expert_bias_bwd";
  auto fields() {
    return fields_of(Field::inout("dbias", dbias), Field::inout("dweights", dweights), Field::in("dx", dx),
                     Field::in("bias", bias), Field::in("offsets", offsets), Field::in("weights", weights),
                     Field::in("slots", slots));
  }
  int64_t experts() const { return offsets.numel() - 1; }
  void check() const {
    Expect e{kName};
    expect_biased_rows(e, "dx", dx, bias, offsets, weights, slots);
    if (dbias) e.gradient("dbias", dbias, bias.shape);
    e.that(bool(weights) == bool(dweights), "dweights", "exactly with weights");
    if (weights) e.is("dweights", dweights, DType::f32, weights.shape);
  }
  Cost cost() const { return {4.0 * double(dx.numel()), traffic(*this)}; }
};

inline void expect_clamped_rows(const Expect& e, const Tensor& y, const Tensor& gu, const Tensor& weights,
                                const Tensor& slots, float limit) {
  e.float_matrix("gu", gu)
      .matrix("y", y)
      .is("gu", gu, gu.dtype, {y.rows(), 2 * y.cols()})
      .is("y", y, gu.dtype, y.shape);
  e.is("weights", weights, DType::f32, weights.shape).is("slots", slots, DType::i32, {y.rows()});
  e.that(weights.numel() == y.rows(), "weights", "one for each row").that(limit > 0, "gu", "a limit above 0");
}

// y[r] = weights[slots[r]] (u + 1) g sigmoid(1.702 g), gu = [gate | up], g = min(gate, limit), u = up clamped to
// [-limit, limit].
struct ClampedGluFwd {
  static constexpr float kSteepness = 1.702f;  // swiglu_alpha of transformers' GptOssConfig
  Tensor y;                                    // [R, F]
  Tensor gu;                                   // [R, 2F]
  Tensor weights;                              // [N, k] f32
  Tensor slots;                                // [R] i32, distinct
  float limit = 7;
  static constexpr const char* kName = "clamped_glu_fwd";
  auto fields() {
    return fields_of(Field::out("y", y), Field::in("gu", gu), Field::in("weights", weights), Field::in("slots", slots));
  }
  void check() const { expect_clamped_rows(Expect{kName}, y, gu, weights, slots, limit); }
  Cost cost() const { return {10.0 * double(y.numel()), traffic(*this)}; }
};

// Gradients are zero where clamping changed the value.
struct ClampedGluBwd {
  Tensor dgu;       // [R, 2F]; may be gu's memory
  Tensor dweights;  // [N, k] f32: at slots[r] the sum of dy y / weight over row r
  Tensor y;         // [R, F]: recomputed output of ClampedGluFwd, bit-identical; may be dy's memory
  Tensor dy;        // [R, F]
  Tensor gu;        // [R, 2F]
  Tensor weights;   // [N, k] f32
  Tensor slots;     // [R] i32, distinct
  float limit = 7;
  static constexpr const char* kName = "clamped_glu_bwd";
  auto fields() {
    return fields_of(Field::out("dgu", dgu), Field::out("dweights", dweights), Field::out("y", y), Field::in("dy", dy),
                     Field::in("gu", gu), Field::in("weights", weights), Field::in("slots", slots));
  }
  void check() const {
    Expect e{kName};
    expect_clamped_rows(e, y, gu, weights, slots, limit);
    e.is("dy", dy, gu.dtype, y.shape).is("dgu", dgu, gu.dtype, gu.shape);
    e.is("dweights", dweights, DType::f32, weights.shape);
  }
  Cost cost() const { return {22.0 * double(dy.numel()), traffic(*this)}; }
};

}  // namespace athanor
