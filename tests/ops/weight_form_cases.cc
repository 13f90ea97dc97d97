// Cases of NF4 weights and of DoRA's scaled columns.
#include "tests/ops/cases.h"

namespace athanor {
namespace {

void dequantized_weights(Examiner& examine) {
  for (const DType dtype : kFloats)
    for (const int64_t n : {1, 2, 63, 64, 67, 1000, 256 * 64 + 5, 40000})
      for (const bool nested : {false, true}) {
        const int64_t blocks = div_ceil(n, kNf4Block);
        DequantizeNf4 op{.y = tensor(dtype, {n}),
                         .packed = tensor(DType::u8, {div_ceil<int64_t>(n, 2)}),
                         .absmax = tensor(nested ? DType::u8 : DType::f32, {blocks})};
        if (nested) {
          op.nested_absmax = tensor(DType::f32, {div_ceil(blocks, kNf4NestedBlock)});
          op.map = tensor(DType::f32, {kNf4MapSize}), op.offset = tensor(DType::f32, {1});
        }
        Values values{{"packed", below(256)}, {"nested_absmax", uniform(0, 3)}, {"map", uniform(-1, 1)}};
        values["absmax"] = nested ? below(256) : uniform(0, 4);
        examine(OpCase<DequantizeNf4>{cat(n, " ", dtype, nested ? " nested" : ""), op, values, true});
      }
}

void scaled_columns(Examiner& examine) {
  for (const DType dtype : kFloats)
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 5}, Shape{70, 33}, Shape{9, 200}})
      for (const int64_t gap : {0, 3}) {
        const auto matrix = [&] { return tensor(dtype, shape, gap ? shape[1] + gap : 0); };
        const Tensor m = tensor(dtype, {shape[1]}), squares = tensor(DType::f64, {shape[1]});
        const Values values{{"squares", uniform(0.5, 4)}};
        const std::string name = cat(dtype, " ", shape, gap ? " strided" : "");
        ScaleByMagnitude op{.y = matrix(), .x = matrix(), .magnitude = m, .squares = squares};
        examine(OpCase<ScaleByMagnitude>{name, op, values});
        examine(OpCase<ScaleByMagnitude>{name + " in place", op, values, false, {{"y", "x"}}});
        op.bias = tensor(DType::f32, {shape[1]}), op.accumulate = true;
        examine(OpCase<ScaleByMagnitude>{name + " with bias, added", op, values});
        op.magnitude = op.squares = {};
        examine(OpCase<ScaleByMagnitude>{name + " without magnitudes", op, values});
        for (const DType gradient : {DType::f32, DType::bf16}) {
          const ScaleByMagnitudeBwd back{.dx = matrix(),
                                         .dm = tensor(gradient, {shape[1]}),
                                         .dy = matrix(),
                                         .x = matrix(),
                                         .magnitude = m,
                                         .squares = squares};
          examine(OpCase<ScaleByMagnitudeBwd>{cat(name, " dm ", gradient), back, values});
          examine(OpCase<ScaleByMagnitudeBwd>{
              cat(name, " dm ", gradient, " in place"), back, values, false, {{"dx", "dy"}}});
        }
      }
}

}  // namespace

void weight_form_cases(Examiner& examine) {
  dequantized_weights(examine);
  scaled_columns(examine);
}

}  // namespace athanor
