// Cases of weights in NF4 and int8, of DoRA's scaled columns, and of weights with 2:4 sparsity.
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

// Whole numbers, so that many magnitudes are equal, and f32 that differ only beyond bf16.
void two_of_four(Examiner& examine) {
  const Init few = [](uint64_t, int64_t i) { return double(i * 7 % 5 - 2); };
  const Init close = [](uint64_t, int64_t i) { return (1 + double(i * 5 % 7) * 0x1p-12) * (i % 3 == 0 ? -1 : 1); };
  for (const DType dtype : kFloats)
    for (const int64_t n : {4, 8, 260, 40000})
      for (const auto& [kind, values] :
           {std::pair("", normal()), std::pair(" few values", few), std::pair(" close", close)}) {
        const std::string name = cat(n, " ", dtype, kind);
        const Tensor x = tensor(dtype, {n}), state = tensor(DType::u8, {int64_t(sizeof(StepState))});
        examine(OpCase<KeepTwoOfFour>{name, {.y = x, .x = x}, {{"x", values}}, true});
        for (const DType gradient : {DType::f32, DType::bf16})
          for (const int skip : {0, 1}) {
            StepState s;
            s.grad_scale = 0.3f, s.skip = skip;
            const DecayPruned op{.grad = tensor(gradient, {n}), .w = x, .state = state, .decay = 0.1f};
            examine(OpCase<DecayPruned>{cat(name, " gradient ", gradient, skip ? " skipped" : ""),
                                        op,
                                        {{"w", values}, {"state", bytes_of(s)}}});
          }
      }
}

// Rows with outliers, zero rows, and FP8 at both ends of its range; sizes around the kernels' tiles and chunks.
void int8_gemms(Examiner& examine) {
  const Init ends = [](uint64_t, int64_t i) { return i % 3 == 0 ? -1.0 : 1.0; };
  const Init spiky = [](uint64_t s, int64_t i) { return i % 29 == 7 ? 9.0 * (i % 2 ? 1 : -1) : normal()(s, i); };
  const Init quantized = [](uint64_t s, int64_t i) { return 1 + below(255)(s, i); };
  for (const DType dtype : kFloats)
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {3, 7, 65}, {66, 70, 129}, {5, 130, 512}})
      for (const auto& [kind, a] : {std::pair("", spiky), std::pair(" zeros", constant(0)), std::pair(" ends", ends)})
        for (const float outlier : {0.0f, 6.0f}) {
          Int8Gemm op{.d = tensor(dtype, {m, n}, n + 3),
                      .a = tensor(dtype, {m, k}, k + 2),
                      .quantized = tensor(DType::u8, {n, k}),
                      .scales = tensor(DType::f32, {n}),
                      .outlier = outlier};
          const Values values{{"a", a}, {"quantized", quantized}, {"scales", uniform(0, 0.01)}};
          const std::string name = cat(dtype, " ", m, "x", n, "x", k, kind, outlier > 0 ? " outliers apart" : "");
          examine(OpCase<Int8Gemm>{name, op, values});
          op.bias = tensor(dtype, {n});
          examine(OpCase<Int8Gemm>{name + " with bias", op, values});
        }
}

}  // namespace

void weight_form_cases(Examiner& examine) {
  int8_gemms(examine);
  dequantized_weights(examine);
  scaled_columns(examine);
  two_of_four(examine);
}

}  // namespace athanor
