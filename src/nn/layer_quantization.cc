#include "nn/layer_quantization.h"

#include "base/rng.h"

namespace athanor {

Linear layer_of(const ParamStore& params, Param weight) {
  return {.w = weight, .b = {}, .order = params.spec(weight).in_out ? WeightOrder::in_out : WeightOrder::out_in};
}

QuantizedTensor kept_quantized(Net n, const Linear& layer, Operand operand) {
  if (n.c.quantization.weights.empty()) return {};
  if (LayerQuantization(n, layer).same(operand, Operand::forward_w)) operand = Operand::forward_w;
  QuantizedTensor quantized = n.c.quantization.weights[size_t(layer.w.id) * kOperands + size_t(operand)];
  if (quantized.scales && n.params.has_quantized(layer.w)) quantized.data.data = n.params.quantized(layer.w).data;
  return quantized;
}

OperandRule LayerQuantization::rule(Operand operand) const {
  return spec_.low_precision ? recipe_.rule(operand) : OperandRule{};
}

// Returns the dimension of the matrix in memory that is the K dimension of the operand's GEMM.
int LayerQuantization::summed(Operand operand) const {
  const bool out_in = layer_.order == WeightOrder::out_in;
  switch (operand) {
    case Operand::forward_x:
    case Operand::input_dy:
      return 1;
    case Operand::forward_w:
      return out_in ? 1 : 0;
    case Operand::input_w:
      return out_in ? 0 : 1;
    case Operand::weight_dy:
    case Operand::weight_x:
      return 0;
  }
  return 0;
}

Blocks LayerQuantization::blocks(Operand operand) const { return blocks_of(rule(operand).scaling, summed(operand)); }

bool LayerQuantization::transposed(Operand operand) const {
  const OperandRule r = rule(operand);
  const bool simple =
      r.scaling != Scaling::none && r.quantized != DType::f4_e2m1 && scale_type(r.scaling) == DType::f32;
  if (!recipe_.transposes_quantized || !simple || summed(operand) != 0) return false;
  return matrix_of(operand) != Matrix::w || !same(Operand::forward_w, Operand::input_w);
}

bool LayerQuantization::both(Matrix matrix) const {
  if (matrix == Matrix::w) return false;
  const bool x = matrix == Matrix::x;
  const Operand along = x ? Operand::forward_x : Operand::input_dy, across = x ? Operand::weight_x : Operand::weight_dy;
  const Scaling scaling = rule(along).scaling;
  return rule(along) == rule(across) && transposed(across) &&
         (scaling == Scaling::tensor || scaling == Scaling::row || scaling == Scaling::block128);
}

QuantizedTensor LayerQuantization::like(Operand operand, const Shape& matrix, bool both) const {
  const OperandRule r = rule(operand);
  const bool is_transposed = transposed(operand) && !both;
  const Shape shape = is_transposed ? transposed_shape(matrix) : matrix;
  const Blocks of_shape = is_transposed ? athanor::transposed(blocks(operand)) : blocks(operand);
  QuantizedTensor quantized{.data = {nullptr, r.quantized, shape},
                            .scales = {nullptr, scale_type(r.scaling), of_shape.grid(shape)},
                            .blocks = of_shape,
                            .transposed = is_transposed};
  if (both) quantized.transposed_copy = {nullptr, r.quantized, transposed_shape(matrix)};
  if (both && r.scaling != Scaling::tensor)
    quantized.transposed_scales = {nullptr, DType::f32, of_shape.grid(quantized.transposed_copy.shape)};
  if (r.quantized == DType::f4_e2m1) quantized.global = {nullptr, DType::f32, {1}};
  return quantized;
}

Tensor LayerQuantization::amax(const Ctx& c, Matrix matrix) const {
  const bool x = matrix == Matrix::x;
  const Operand a = x ? Operand::forward_x : Operand::input_dy, b = x ? Operand::weight_x : Operand::weight_dy;
  if (!c.quantization.amax || !(rule(a).by_amax() || rule(b).by_amax())) return {};
  const int64_t row = layer_.w.id * int64_t(kMatrices) + int64_t(matrix);
  return {c.quantization.amax.at(row), DType::f32, {1}};
}

Quantize LayerQuantization::quantize(const Ctx& c, Operand operand, const Tensor& matrix,
                                     const QuantizedTensor& quantized, Tensor amax) const {
  const OperandRule r = rule(operand);
  const Quantization& q = c.quantization;
  Quantize op{.quantized = quantized.data,
              .scales = quantized.scales,
              .global = quantized.global,
              .x = matrix,
              .blocks = blocks(operand),
              .power_of_two = recipe_.power_of_two,
              .hadamard = r.hadamard,
              .at_random = r.at_random,
              .seed = c.seed,
              .stream = r.at_random ? stream_of(spec_.name) + uint64_t(operand) : 0,
              .transpose_only = quantized.transposed,
              .transposed = quantized.transposed_copy,
              .transposed_scales = quantized.transposed_scales};
  const auto statistics_of = [&](Operand counted) {
    const int64_t row = layer_.w.id * int64_t(kOperands) + int64_t(counted);
    return Tensor{q.statistics.at(row * QuantizeStatistics::kNumbers), DType::f64, {QuantizeStatistics::kNumbers}};
  };
  if (q.statistics) op.statistics = statistics_of(operand);
  if (q.statistics && quantized.transposed_scales)
    op.transposed_statistics = statistics_of(operand == Operand::forward_x ? Operand::weight_x : Operand::weight_dy);
  const auto of_matrix = [&](const Tensor& all) {
    return Tensor{all.at(layer_.w.id * int64_t(kMatrices) + int64_t(matrix_of(operand))), DType::f32, {1}};
  };
  if (r.delayed && q.factors) op.factor = of_matrix(q.factors);
  if (r.delayed && q.step_amax) op.step_amax = of_matrix(q.step_amax);
  if (r.by_amax()) op.amax = amax;
  return op;
}

}  // namespace athanor
