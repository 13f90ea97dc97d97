// Attention sinks: a learned logit per head that takes part in the softmax and has no value [Xiao et al. 2023; OpenAI
// 2025, "gpt-oss", sec. 2.2]. The op rescales the output of AttentionFwd, like MergeAttention with a key whose value is
// 0, so it works with every attention kernel. AttentionBwd only needs the new y and lse.
#pragma once
#include "ops/op.h"

namespace athanor {

// With e = log(exp(lse) + exp(sink)) per query and head: y becomes y exp(lse - e), lse becomes e. A query without keys
// keeps y = 0.
struct AttentionSinks {
  Tensor y;      // [N, H D] float
  Tensor lse;    // [N, H] f32
  Tensor sinks;  // [H] float
  static constexpr const char* kName = "attention_sinks";
  auto fields() { return fields_of(Field::inout("y", y), Field::inout("lse", lse), Field::in("sinks", sinks)); }
  void check() const {
    Expect e{kName};
    e.floating("y", y).matrix("y", y).is("y", y, y.dtype, y.shape).matrix("lse", lse);
    e.is("lse", lse, DType::f32, {y.rows(), lse.cols()}).floating("sinks", sinks);
    e.is("sinks", sinks, sinks.dtype, {lse.cols()});
    e.that(lse.cols() > 0 && y.cols() % lse.cols() == 0, "y", "heads of one size");
  }
  Cost cost() const { return {double(y.numel()), traffic(*this)}; }
};

// dsinks += -sum over queries of exp(sink - lse) dy·y, with y and lse as written by AttentionSinks; summed in a fixed
// order.
struct AttentionSinksBwd {
  Tensor dsinks;  // [H] f32 or bf16, accumulates
  Tensor dy, y;   // [N, H D]
  Tensor lse;     // [N, H] f32
  Tensor sinks;   // [H] float
  static constexpr const char* kName = "attention_sinks_bwd";
  auto fields() {
    return fields_of(Field::inout("dsinks", dsinks), Field::in("dy", dy), Field::in("y", y), Field::in("lse", lse),
                     Field::in("sinks", sinks));
  }
  void check() const {
    Expect e{kName};
    e.floating("y", y).matrix("y", y).is("y", y, y.dtype, y.shape).is("dy", dy, y.dtype, y.shape).matrix("lse", lse);
    e.is("lse", lse, DType::f32, {y.rows(), lse.cols()}).floating("sinks", sinks);
    e.is("sinks", sinks, sinks.dtype, {lse.cols()}).gradient("dsinks", dsinks, {lse.cols()});
    e.that(lse.cols() > 0 && y.cols() % lse.cols() == 0, "y", "heads of one size");
  }
  Cost cost() const { return {2.0 * double(y.numel()), traffic(*this)}; }
};

}  // namespace athanor
