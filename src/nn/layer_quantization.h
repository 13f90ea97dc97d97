// LayerQuantization: how the operands of a linear layer's three GEMMs are quantized to FP8 or FP4.
#pragma once
#include "nn/layers.h"

namespace athanor {

class LayerQuantization {
 public:
  LayerQuantization(const ParamStore& params, const Recipe& recipe, const Linear& layer)
      : spec_(params.spec(layer.w)), recipe_(recipe), layer_(layer) {}
  LayerQuantization(Net n, const Linear& layer) : LayerQuantization(n.params, n.c.recipe, layer) {}

  // Returns the rule of an operand; Scaling::none in layers that are not quantized, and for operands that stay in 16
  // bits.
  OperandRule rule(Operand) const;
  bool any(Operand operand) const { return rule(operand).scaling != Scaling::none; }
  Blocks blocks(Operand) const;
  // True if two operands of one matrix have the same quantized values.
  bool same(Operand a, Operand b) const { return rule(a) == rule(b) && blocks(a) == blocks(b); }
  // True if the operand is quantized transposed, because its GEMM sums over the rows and the backend wants the K
  // dimension contiguous. Weights are not transposed if forward and input-gradient GEMMs read the same values: a
  // transpose for each GEMM is cheaper than a second copy of all weights.
  bool transposed(Operand) const;
  // True if quantizing x or dy also writes the operand of the weight-gradient GEMM: a transposed copy of the same
  // values, or transposed values with scales along the other dimension.
  bool both(Matrix) const;
  // Returns tensors without memory for a matrix of this shape. both: includes the transposed copy, see both().
  QuantizedTensor like(Operand, const Shape&, bool both = false) const;
  // Quantizes the matrix. amax: amax of the matrix, optional.
  void make(Ctx& c, Operand operand, const Tensor& matrix, const QuantizedTensor& quantized, Tensor amax = {}) const {
    c.run(quantize(c, operand, matrix, quantized, amax));
  }
  Quantize quantize(const Ctx&, Operand, const Tensor& matrix, const QuantizedTensor&, Tensor amax = {}) const;
  // Returns the [1] f32 to which the op that writes the layer's input x, or dy, stores its amax, so that quantizing
  // need not compute it; empty if quantizing does not need it.
  Tensor amax(const Ctx&, Matrix) const;

 private:
  int summed(Operand) const;
  const ParamSpec& spec_;
  const Recipe& recipe_;
  Linear layer_;
};

// Returns the layer of a weight, without its bias.
Linear layer_of(const ParamStore&, Param weight);
// Returns this operand's quantized weight, if Quantization::weights keeps it, else no data. If both GEMMs read the same
// values, they are in forward_w; if quantized weights are sharded, the ParamStore has the gathered values.
QuantizedTensor kept_quantized(Net, const Linear&, Operand);

}  // namespace athanor
