// Which codes of 8 or 4 bits the three products of a linear layer read, and how a matrix becomes them.
#pragma once
#include "nn/layers.h"

namespace athanor {

class LayerCodes {
 public:
  LayerCodes(const ParamStore& params, const Recipe& recipe, const Linear& layer)
      : spec_(params.spec(layer.w)), recipe_(recipe), layer_(layer) {}
  LayerCodes(Net n, const Linear& layer) : LayerCodes(n.params, n.c.recipe, layer) {}

  // The rule of an operand; Scaling::none in layers that are not quantized, and for operands that stay in 16 bits.
  OperandRule rule(Operand) const;
  bool any(Operand operand) const { return rule(operand).scaling != Scaling::none; }
  Blocks blocks(Operand) const;
  bool same(Operand a, Operand b) const { return rule(a) == rule(b) && blocks(a) == blocks(b); }  // of a matrix
  // Whether the operand's codes are those of the transposed matrix, since its product sums over the rows and the
  // backend wants the terms in rows. Weights are not where both products read the same codes: a second copy of all
  // weights costs more memory than transposing them for each product costs time.
  bool turned(Operand) const;
  // Whether quantizing the input, or the gradient of the output, writes beside what one product reads what the gradient
  // of the weight does: the same codes transposed, or those that have scales along the other dimension.
  bool both(Matrix) const;
  // Tensors without memory for the codes of a matrix of this shape; both: as that says.
  Codes like(Operand, const Shape&, bool both = false) const;
  // largest: of the matrix, or none.
  void make(Ctx& c, Operand operand, const Tensor& matrix, const Codes& codes, Tensor largest = {}) const {
    c.run(quantize(c, operand, matrix, codes, largest));
  }
  Quantize quantize(const Ctx&, Operand, const Tensor& matrix, const Codes&, Tensor largest = {}) const;
  // Where whoever makes the layer's input, or the gradient of its output, leaves its largest magnitude, [1] f32, since
  // quantizing it would have to find that; none: it need not.
  Tensor largest(const Ctx&, Matrix) const;

 private:
  int summed(Operand) const;
  const ParamSpec& spec_;
  const Recipe& recipe_;
  Linear layer_;
};

// The layer of a weight, without its bias.
Linear layer_of(const ParamStore&, Param weight);
// The quantized weight of this operand that Quantization::weights keeps, or no data. Where both GEMMs read the same
// values, forward_w has them; where quantized weights are sharded, the ParamStore has the gathered ones.
Codes kept_codes(Net, const Linear&, Operand);

}  // namespace athanor
