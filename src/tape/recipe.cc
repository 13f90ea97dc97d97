#include "tape/recipe.h"

#include <algorithm>
#include <iterator>

namespace athanor {
namespace {

using Rules = std::array<OperandRule, kOperands>;
constexpr Rules all_of(Scaling s) { return {{{s}, {s}, {s}, {s}, {s}, {s}}}; }

// TransformerEngine's recipe of current scaling.
constexpr OperandRule kTensor{Scaling::tensor}, kTensorGradient{Scaling::tensor, DType::f8_e5m2};
constexpr Rules kTensorwise{{kTensor, kTensor, kTensorGradient, kTensor, kTensorGradient, kTensor}};
// TransformerEngine's recipe of delayed scaling.
constexpr OperandRule kDelayed{.scaling = Scaling::tensor, .delayed = true},
    kDelayedGradient{.scaling = Scaling::tensor, .quantized = DType::f8_e5m2, .delayed = true};
constexpr Rules kAllDelayed{{kDelayed, kDelayed, kDelayedGradient, kDelayed, kDelayedGradient, kDelayed}};
// torchao's rowwise_with_gw_hp: weight-gradient GEMMs stay in 16 bits; input-gradient GEMMs read weights with one
// scale.
constexpr OperandRule kRow{Scaling::row}, kHigh{};
constexpr Rules kRowwiseHighWeightGradient{{kRow, kRow, kRow, kTensor, kHigh, kHigh}};
// [DeepSeek-AI 2024, DeepSeek-V3, sec. 3.3.2]: gradients are never quantized in squares, with which training diverged
// (B.2).
constexpr OperandRule kBlock{Scaling::block128}, kSquare{Scaling::square128};
constexpr Rules kBlockwise{{kBlock, kSquare, kBlock, kSquare, kBlock, kBlock}};

// [NVIDIA 2025, Pretraining Large Language Models with NVFP4, sec. 4]: weights in squares, so that forward and
// input-gradient GEMMs read the same values; gradients with stochastic rounding; both operands of weight-gradient GEMMs
// Hadamard-transformed.
constexpr DType kFp4 = DType::f4_e2m1;
constexpr OperandRule kLine16{Scaling::block16, kFp4}, kSquare16{Scaling::square16, kFp4},
    kGradient16{.scaling = Scaling::block16, .quantized = kFp4, .at_random = true},
    kSpreadGradient16{.scaling = Scaling::block16, .quantized = kFp4, .at_random = true, .hadamard = true},
    kSpread16{.scaling = Scaling::block16, .quantized = kFp4, .hadamard = true};
constexpr Rules kNvfp4{{kLine16, kSquare16, kGradient16, kSquare16, kSpreadGradient16, kSpread16}};

}  // namespace

Recipe make_recipe(std::string_view name, DType master, GradientFormat gradients) {
  constexpr DType f32 = DType::f32, bf16 = DType::bf16;
  constexpr Recipe kRecipes[] = {
      {.name = "fp32", .compute = f32, .master = f32},
      {.name = "tf32", .compute = f32, .master = f32, .tf32 = true},
      {.name = "bf16", .compute = bf16, .master = f32},
      {.name = "fp16", .compute = DType::f16, .master = f32, .loss_scaling = true},
      {.name = "fp8_tensorwise", .compute = bf16, .master = f32, .linear = kTensorwise},
      {.name = "fp8_delayed", .compute = bf16, .master = f32, .linear = kAllDelayed},
      {.name = "fp8_rowwise", .compute = bf16, .master = f32, .linear = all_of(Scaling::row)},
      {.name = "fp8_rowwise_gw_hp", .compute = bf16, .master = f32, .linear = kRowwiseHighWeightGradient},
      {.name = "fp8_blockwise", .compute = bf16, .master = f32, .linear = kBlockwise},
      {.name = "mxfp8", .compute = bf16, .master = f32, .linear = all_of(Scaling::block32), .power_of_two = true},
      {.name = "nvfp4", .compute = bf16, .master = f32, .linear = kNvfp4},
  };
  const auto* row =
      std::find_if(std::begin(kRecipes), std::end(kRecipes), [&](const Recipe& r) { return r.name == name; });
  CHECK(row != std::end(kRecipes), "no precision recipe named ", name);
  Recipe recipe = *row;
  recipe.master = master;
  if (gradients != GradientFormat::automatic)
    for (const Operand operand : {Operand::input_dy, Operand::weight_dy})
      recipe.linear[size_t(operand)].quantized = gradients == GradientFormat::e5m2 ? DType::f8_e5m2 : DType::f8_e4m3;
  if (master != DType::f32 && recipe.compute != DType::bf16)
    throw Error(cat("master_weights: ", master == DType::i16 ? "split" : name_of(master),
                    " masters need precision bf16 or a low precision such as fp8_tensorwise, got ", name,
                    "; use master_weights fp32"),
                Exit::usage);
  return recipe;
}

Blocks blocks_of(Scaling scaling, int summed) {
  const auto along = [&](int64_t terms) { return summed == 1 ? Blocks{1, terms} : Blocks{terms, 1}; };
  switch (scaling) {
    case Scaling::none:
    case Scaling::tensor:
      return {};
    case Scaling::row:
      return along(0);
    case Scaling::block128:
      return along(128);
    case Scaling::square128:
      return {128, 128};
    case Scaling::block32:
      return along(32);
    case Scaling::block16:
      return along(16);
    case Scaling::square16:
      return {16, 16};
  }
  return {};
}

}  // namespace athanor
