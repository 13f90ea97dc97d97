// A precision recipe is a row of data: which dtype each role of tensor has, and what the products of linear layers
// read.
#pragma once
#include <array>
#include <string_view>

#include "base/choices.h"
#include "ops/quantize.h"

namespace athanor {

// What a product reads of a matrix in 8 or 4 bits, and which of its elements share a scale: all; a row along the terms
// of the sums; 128, 32 or 16 terms of a row; squares of 128 by 128 or 16 by 16.
enum class Scaling : uint8_t { none, tensor, row, block128, square128, block32, block16, square16 };
struct OperandRule {
  Scaling scaling = Scaling::none;  // none: the matrix itself
  DType codes = DType::f8_e4m3;
  bool at_random = false;  // codes are rounded at random, without bias, in place of to nearest
  bool hadamard = false;   // codes of the random Hadamard transform along the terms
  bool delayed = false;    // the scale follows from earlier steps: DelayedScaling
  bool operator==(const OperandRule&) const = default;
  // One scale for all, by the largest magnitude of this very matrix: Quantize::largest.
  bool by_largest() const { return scaling == Scaling::tensor && !delayed; }
  // Whether the sums of outputs may be kept in fewer bits than f32 has: not with blocks. Those of gradients never are.
  // [NVIDIA, TransformerEngine, common/recipe; torchao, float8/config.py]
  bool fast() const { return scaling == Scaling::tensor || scaling == Scaling::row; }
};

// The operands of a linear layer's three products: its output, the gradient of its input, that of its weight.
enum class Operand : uint8_t { forward_x, forward_w, input_dy, input_w, weight_dy, weight_x };
constexpr size_t kOperands = 6;
constexpr std::string_view name_of(Operand operand) {
  constexpr std::string_view kNames[kOperands] = {"forward_x", "forward_w", "input_dy",
                                                  "input_w",   "weight_dy", "weight_x"};
  return kNames[size_t(operand)];
}

// The matrices behind them, each with two of the operands.
enum class Matrix : uint8_t { x, w, dy };
constexpr size_t kMatrices = 3;
constexpr Matrix matrix_of(Operand operand) {
  if (operand == Operand::forward_w || operand == Operand::input_w) return Matrix::w;
  return operand == Operand::forward_x || operand == Operand::weight_x ? Matrix::x : Matrix::dy;
}

// Scales of a step from the largest magnitudes that a matrix had in steps before it: see DelayedScales.
struct DelayedScaling {
  int64_t history = 1024;  // steps, as TransformerEngine's fp8_amax_history_len
  int margin = 0;          // the largest magnitude becomes the largest code / 2^margin
};

struct Recipe {
  std::string_view name;
  DType compute;              // activations, their gradients, and the weights that products read
  DType master;               // what the optimizer updates, or of i16: the rests of f32 masters, halved (tensor/half.h)
  bool tf32 = false;          // round f32 products' inputs to TF32
  bool loss_scaling = false;  // fp16's narrow exponent
  DType gradients = DType::f32;  // of weights: what micro-batches are added to, and what ranks send of it; or bf16
  std::array<OperandRule, kOperands> linear = {};  // of layers in 8 or 4 bits, by Operand
  bool power_of_two = false;                       // their scales
  DelayedScaling delayed = {};                     // of operands whose rules say so
  bool turns_codes = false;  // Ops::turns_codes() of the backend: codes lie as its products read them
  bool separate_params() const { return compute != master; }  // weights to compute with are beside the masters
  OperandRule rule(Operand operand) const { return linear[size_t(operand)]; }
  bool low_precision() const { return rule(Operand::forward_x).scaling != Scaling::none; }  // or four
  bool delayed_scaling() const { return rule(Operand::forward_x).delayed; }
  bool four_bits() const { return rule(Operand::forward_x).codes == DType::f4_e2m1; }
};

// name: a word of `precision`.
Recipe make_recipe(std::string_view name, DType master, GradientCodes gradients = GradientCodes::automatic);

// The blocks of a rule for a matrix whose dimension `summed` the product sums over.
Blocks blocks_of(Scaling, int summed);
constexpr DType scale_type(Scaling s) {
  if (s == Scaling::block16 || s == Scaling::square16) return DType::f8_e4m3;
  return s == Scaling::block32 ? DType::f8_e8m0 : DType::f32;
}

}  // namespace athanor
