#include "nn/codes.h"

#include "base/rng.h"

namespace athanor {

Linear layer_of(const ParamStore& params, Param weight) {
  return {.w = weight, .b = {}, .order = params.spec(weight).in_out ? WeightOrder::in_out : WeightOrder::out_in};
}

const Codes* kept_codes(Net n, const Linear& layer, Operand operand) {
  if (n.c.quantization.weights.empty()) return nullptr;
  if (LayerCodes(n, layer).same(operand, Operand::forward_w)) operand = Operand::forward_w;
  const Codes& codes = n.c.quantization.weights[size_t(layer.w.id) * kOperands + size_t(operand)];
  return codes.data ? &codes : nullptr;
}

OperandRule LayerCodes::rule(Operand operand) const { return spec_.eight_bits ? recipe_.rule(operand) : OperandRule{}; }

// The dimension of an operand, as it lies in memory, that its product sums over.
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

Codes LayerCodes::like(Operand operand, const Shape& matrix) const {
  const OperandRule r = rule(operand);
  Codes codes{.data = {nullptr, r.codes, matrix},
              .scales = {nullptr, scale_type(r.scaling), blocks(operand).grid(matrix)},
              .blocks = blocks(operand)};
  if (r.codes == DType::f4_e2m1) codes.global = {nullptr, DType::f32, {1}};
  return codes;
}

void LayerCodes::make(Ctx& c, Operand operand, const Tensor& matrix, const Codes& codes) const {
  const OperandRule r = rule(operand);
  const Quantization& q = c.quantization;
  Quantize op{.codes = codes.data,
              .scales = codes.scales,
              .global = codes.global,
              .x = matrix,
              .blocks = codes.blocks,
              .power_of_two = recipe_.power_of_two,
              .hadamard = r.hadamard,
              .at_random = r.at_random,
              .seed = c.seed,
              .stream = r.at_random ? stream_of(spec_.name) + uint64_t(operand) : 0};
  if (q.statistics) {
    const int64_t row = layer_.w.id * int64_t(kOperands) + int64_t(operand);
    op.statistics = {q.statistics.at(row * QuantizeStatistics::kNumbers), DType::f64, {QuantizeStatistics::kNumbers}};
  }
  const auto of_matrix = [&](const Tensor& all) {
    return Tensor{all.at(layer_.w.id * int64_t(kMatrices) + int64_t(matrix_of(operand))), DType::f32, {1}};
  };
  if (r.delayed && q.factors) op.factor = of_matrix(q.factors);
  if (r.delayed && q.amax) op.amax = of_matrix(q.amax);
  c.run(op);
}

}  // namespace athanor
