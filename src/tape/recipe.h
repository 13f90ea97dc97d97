// A precision recipe is one table row: the dtype of each kind of tensor, and how the GEMM operands of linear layers are
// quantized.
#pragma once
#include <array>
#include <string_view>

#include "base/choices.h"
#include "ops/quantize.h"

namespace athanor {

// Which elements of a GEMM operand share a scale: none (not quantized); the whole tensor; a row along the GEMM's K
// dimension; blocks of 128, 32 or 16 elements along K; squares of 128 x 128 or 16 x 16.
enum class Scaling : uint8_t { none, tensor, row, block128, square128, block32, block16, square16 };
struct OperandRule {
  Scaling scaling = Scaling::none;  // none: the operand is the matrix itself
  DType quantized = DType::f8_e4m3;
  bool at_random = false;  // stochastic rounding instead of round-to-nearest
  bool hadamard = false;   // quantized after a random Hadamard transform along the GEMM's K dimension
  bool delayed = false;    // the scale follows from amax of earlier steps: DelayedScaling
  bool operator==(const OperandRule&) const = default;
  // True with current scaling per tensor, which needs the tensor's amax: Quantize::amax.
  bool by_amax() const { return scaling == Scaling::tensor && !delayed; }
  // True if a forward GEMM may accumulate with fewer bits than f32, which is not the case with block scales. Gradient
  // GEMMs never may.
  // [NVIDIA, TransformerEngine, common/recipe; torchao, float8/config.py]
  bool fast() const { return scaling == Scaling::tensor || scaling == Scaling::row; }
};

// The operands of a linear layer's three GEMMs: forward, input gradient, weight gradient.
enum class Operand : uint8_t { forward_x, forward_w, input_dy, input_w, weight_dy, weight_x };
constexpr size_t kOperands = 6;
constexpr std::string_view name_of(Operand operand) {
  constexpr std::string_view kNames[kOperands] = {"forward_x", "forward_w", "input_dy",
                                                  "input_w",   "weight_dy", "weight_x"};
  return kNames[size_t(operand)];
}

// The matrices behind the operands; each is read by two of them.
enum class Matrix : uint8_t { x, w, dy };
constexpr size_t kMatrices = 3;
constexpr Matrix matrix_of(Operand operand) {
  if (operand == Operand::forward_w || operand == Operand::input_w) return Matrix::w;
  return operand == Operand::forward_x || operand == Operand::weight_x ? Matrix::x : Matrix::dy;
}

// Delayed scaling: scales follow from the amax of earlier steps, see DelayedScales.
struct DelayedScaling {
  int64_t history = 1024;  // in steps; TransformerEngine's fp8_amax_history_len
  int margin = 0;          // the amax is mapped to the format's maximum / 2^margin
};

struct Recipe {
  std::string_view name;
  DType compute;                 // activations, their gradients, and the weights that GEMMs read
  DType master;                  // master weights; i16: low halves of split f32 masters (tensor/half.h)
  bool tf32 = false;             // round inputs of f32 GEMMs to TF32
  bool loss_scaling = false;     // needed for fp16, whose exponent range is narrow
  DType gradients = DType::f32;  // dtype in which weight gradients are accumulated and sent: f32 or bf16
  std::array<OperandRule, kOperands> linear = {};  // rules of low-precision layers, by Operand
  bool power_of_two = false;                       // round scales of these layers to powers of two
  DelayedScaling delayed = {};                     // used by operands whose rule says `delayed`
  bool transposes_quantized =
      false;  // Ops::transposes_quantized() of the backend: operands are quantized with K contiguous
  // True if the weights that GEMMs read are stored in addition to the master weights.
  bool separate_params() const { return compute != master; }
  OperandRule rule(Operand operand) const { return linear[size_t(operand)]; }
  bool low_precision() const { return rule(Operand::forward_x).scaling != Scaling::none; }  // FP8 or FP4
  bool delayed_scaling() const { return rule(Operand::forward_x).delayed; }
  bool four_bits() const { return rule(Operand::forward_x).quantized == DType::f4_e2m1; }
};

// name: a value of the config key `precision`.
Recipe make_recipe(std::string_view name, DType master, GradientFormat gradients = GradientFormat::automatic);

// The blocks of a matrix whose dimension `summed` is the GEMM's K dimension.
Blocks blocks_of(Scaling, int summed);
constexpr DType scale_type(Scaling s) {
  if (s == Scaling::block16 || s == Scaling::square16) return DType::f8_e4m3;
  return s == Scaling::block32 ? DType::f8_e8m0 : DType::f32;
}

}  // namespace athanor
