#include "nn/codes.h"

#include "base/rng.h"

namespace athanor {

Linear layer_of(const ParamStore& params, Param weight) {
  return {.w = weight, .b = {}, .order = params.spec(weight).in_out ? WeightOrder::in_out : WeightOrder::out_in};
}

Codes kept_codes(Net n, const Linear& layer, Operand operand) {
  if (n.c.quantization.weights.empty()) return {};
  if (LayerCodes(n, layer).same(operand, Operand::forward_w)) operand = Operand::forward_w;
  Codes codes = n.c.quantization.weights[size_t(layer.w.id) * kOperands + size_t(operand)];
  if (codes.scales && n.params.has_codes(layer.w)) codes.data.data = n.params.codes(layer.w).data;
  return codes;
}

OperandRule LayerCodes::rule(Operand operand) const {
  return spec_.low_precision ? recipe_.rule(operand) : OperandRule{};
}

// The dimension of the operand's matrix in memory that is the GEMM's K dimension.
int LayerCodes::summed(Operand operand) const {
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

Blocks LayerCodes::blocks(Operand operand) const { return blocks_of(rule(operand).scaling, summed(operand)); }

bool LayerCodes::transposed(Operand operand) const {
  const OperandRule r = rule(operand);
  const bool simple = r.scaling != Scaling::none && r.codes != DType::f4_e2m1 && scale_type(r.scaling) == DType::f32;
  if (!recipe_.turns_codes || !simple || summed(operand) != 0) return false;
  return matrix_of(operand) != Matrix::w || !same(Operand::forward_w, Operand::input_w);
}

bool LayerCodes::both(Matrix matrix) const {
  if (matrix == Matrix::w) return false;
  const bool x = matrix == Matrix::x;
  const Operand along = x ? Operand::forward_x : Operand::input_dy, across = x ? Operand::weight_x : Operand::weight_dy;
  const Scaling scaling = rule(along).scaling;
  return rule(along) == rule(across) && transposed(across) &&
         (scaling == Scaling::tensor || scaling == Scaling::row || scaling == Scaling::block128);
}

Codes LayerCodes::like(Operand operand, const Shape& matrix, bool both) const {
  const OperandRule r = rule(operand);
  const bool turns = transposed(operand) && !both;
  const Shape shape = turns ? transposed_shape(matrix) : matrix;
  const Blocks of_shape = turns ? athanor::transposed(blocks(operand)) : blocks(operand);
  Codes codes{.data = {nullptr, r.codes, shape},
              .scales = {nullptr, scale_type(r.scaling), of_shape.grid(shape)},
              .blocks = of_shape,
              .transposed = turns};
  if (both) codes.beside = {nullptr, r.codes, transposed_shape(matrix)};
  if (both && r.scaling != Scaling::tensor)
    codes.beside_scales = {nullptr, DType::f32, of_shape.grid(codes.beside.shape)};
  if (r.codes == DType::f4_e2m1) codes.global = {nullptr, DType::f32, {1}};
  return codes;
}

Tensor LayerCodes::largest(const Ctx& c, Matrix matrix) const {
  const bool x = matrix == Matrix::x;
  const Operand a = x ? Operand::forward_x : Operand::input_dy, b = x ? Operand::weight_x : Operand::weight_dy;
  if (!c.quantization.largest || !(rule(a).by_largest() || rule(b).by_largest())) return {};
  const int64_t row = layer_.w.id * int64_t(kMatrices) + int64_t(matrix);
  return {c.quantization.largest.at(row), DType::f32, {1}};
}

Quantize LayerCodes::quantize(const Ctx& c, Operand operand, const Tensor& matrix, const Codes& codes,
                              Tensor largest) const {
  const OperandRule r = rule(operand);
  const Quantization& q = c.quantization;
  Quantize op{.codes = codes.data,
              .scales = codes.scales,
              .global = codes.global,
              .x = matrix,
              .blocks = blocks(operand),
              .power_of_two = recipe_.power_of_two,
              .hadamard = r.hadamard,
              .at_random = r.at_random,
              .seed = c.seed,
              .stream = r.at_random ? stream_of(spec_.name) + uint64_t(operand) : 0,
              .turn = codes.transposed,
              .transposed = codes.beside,
              .transposed_scales = codes.beside_scales};
  const auto statistics_of = [&](Operand counted) {
    const int64_t row = layer_.w.id * int64_t(kOperands) + int64_t(counted);
    return Tensor{q.statistics.at(row * QuantizeStatistics::kNumbers), DType::f64, {QuantizeStatistics::kNumbers}};
  };
  if (q.statistics) op.statistics = statistics_of(operand);
  if (q.statistics && codes.beside_scales)
    op.transposed_statistics = statistics_of(operand == Operand::forward_x ? Operand::weight_x : Operand::weight_dy);
  const auto of_matrix = [&](const Tensor& all) {
    return Tensor{all.at(layer_.w.id * int64_t(kMatrices) + int64_t(matrix_of(operand))), DType::f32, {1}};
  };
  if (r.delayed && q.factors) op.factor = of_matrix(q.factors);
  if (r.delayed && q.amax) op.amax = of_matrix(q.amax);
  if (r.by_largest()) op.largest = largest;
  return op;
}

}  // namespace athanor
