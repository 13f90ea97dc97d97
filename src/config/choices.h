// The enums of a configuration and their names in JSON, which are listed in the order of the enumerators.
#pragma once
#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "base/choices.h"
#include "base/error.h"
#include "base/log.h"
#include "base/lora.h"
#include "config/model_config.h"

namespace athanor {

enum class DeviceChoice { automatic, cpu, cuda };
enum class Precision {
  fp32,
  tf32,
  bf16,
  fp16,
  fp8_tensorwise,  // from here on: FP8 or FP4 linear layers, everything else as with bf16
  fp8_delayed,
  fp8_rowwise,
  fp8_rowwise_gw_hp,
  fp8_blockwise,
  mxfp8,
  nvfp4  // FP4
};
constexpr bool low_precision(Precision p) { return p >= Precision::fp8_tensorwise; }  // FP8 or FP4
enum class AmaxComputeAlgo { max, most_recent };                                      // TransformerEngine's names
enum class MasterWeights { fp32, split, bf16 };
enum class SumDtype { fp32, bf16 };                // dtype of gradients and of optimizer moments
enum class EvalWeights { current, average, ema };  // ema: moving or equal-weight average
enum class AsyncSave { automatic, on, off };
enum class Offload { none, cpu, automatic };  // to host memory
enum class DeterministicReduction { fixed_order, rank_invariant };
enum class Packing { contiguous, best_fit };  // how documents are cut or packed into rows
enum class FimLevel { token, character };     // where fill-in-the-middle may cut a document
enum class TokenDtype { automatic, uint8, uint16, uint32, uint64, int8, int16, int32, int64 };
// Rule for a key whose value changed when a run resumes from a checkpoint.
enum class OnResume { free, notice, refused };

using ChoiceNames = std::span<const std::string_view>;

// A string literal as a template argument, and the list of several.
template <size_t N>
struct Literal {
  consteval Literal(const char (&s)[N]) { std::copy_n(s, N, text); }  // NOLINT: implicit, for literals as arguments
  char text[N];
};
template <Literal... words>
constexpr std::string_view kWords[] = {words.text...};

inline ChoiceNames choice_names(ModelType) {
  return kWords<"gpt2", "llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "dots1",
                "deepseek_v2", "deepseek_v3", "gpt_oss", "athanor", "vit">;
}
inline ChoiceNames choice_names(RopeType) { return kWords<"none", "linear", "llama3", "yarn", "proportional">; }
inline ChoiceNames choice_names(Activation) { return kWords<"gelu_pytorch_tanh", "silu", "relu", "relu2", "gelu">; }
inline ChoiceNames choice_names(RouterScore) { return kWords<"softmax", "sigmoid">; }
inline ChoiceNames choice_names(AuxLossScope) { return kWords<"sequence", "micro_batch", "global_batch">; }
inline ChoiceNames choice_names(LayerType) { return kWords<"full_attention", "sliding_attention", "sparse_attention">; }
inline ChoiceNames choice_names(SublayerNorm) { return kWords<"before", "after", "both">; }
inline ChoiceNames choice_names(DeviceChoice) { return kWords<"auto", "cpu", "cuda">; }
inline ChoiceNames choice_names(CudaAttention) { return kWords<"auto", "builtin", "cudnn">; }
inline ChoiceNames choice_names(ContextMethod) { return kWords<"auto", "gather", "ring">; }
inline ChoiceNames choice_names(PipelineSchedule) { return kWords<"1f1b", "interleaved", "gpipe", "zb1p", "zbv">; }
inline ChoiceNames choice_names(RuleName) {
  return kWords<"adamw", "adam", "sgd", "lion", "muon", "normuon", "adamw_8bit", "lamb", "schedule_free_adamw",
                "adafactor", "onebit_adam", "onebit_lamb">;
}
inline ChoiceNames choice_names(std::optional<RuleName>) {
  return kWords<"inherit", "adamw", "adam", "sgd", "lion", "muon", "normuon", "adamw_8bit", "lamb",
                "schedule_free_adamw", "adafactor", "onebit_adam", "onebit_lamb">;
}
inline ChoiceNames choice_names(std::optional<Role>) { return kWords<"any", "matrix", "embedding", "vector">; }
inline ChoiceNames choice_names(DeltaDtype) { return kWords<"fp32", "fp4">; }
inline ChoiceNames choice_names(MuonScale) { return kWords<"original", "match_rms", "spectral">; }
inline ChoiceNames choice_names(DistillLoss) { return kWords<"kl", "reverse_kl", "uld">; }
inline ChoiceNames choice_names(StochasticDepthMode) { return kWords<"linear", "uniform">; }
inline ChoiceNames choice_names(PrunePattern) { return kWords<"unstructured", "2:4">; }
inline ChoiceNames choice_names(PruneScope) { return kWords<"layer", "global">; }
inline ChoiceNames choice_names(PruneMethod) { return kWords<"magnitude", "srste">; }
inline ChoiceNames choice_names(MuonCoefficients) { return kWords<"quintic", "polar_express">; }
inline ChoiceNames choice_names(DecayStyle) {
  return kWords<"constant", "linear", "cosine", "WSD", "inverse_sqrt", "1cycle", "exponential">;
}
inline ChoiceNames choice_names(WsdDecay) { return kWords<"linear", "cosine", "minus_sqrt", "exponential">; }
inline ChoiceNames choice_names(WeightDecayStyle) { return kWords<"constant", "linear", "cosine">; }
inline ChoiceNames choice_names(Precision) {
  return kWords<"fp32", "tf32", "bf16", "fp16", "fp8_tensorwise", "fp8_delayed", "fp8_rowwise", "fp8_rowwise_gw_hp",
                "fp8_blockwise", "mxfp8", "nvfp4">;
}
inline ChoiceNames choice_names(GradientFormat) { return kWords<"auto", "hybrid", "e4m3">; }
inline ChoiceNames choice_names(AmaxComputeAlgo) { return kWords<"max", "most_recent">; }
inline ChoiceNames choice_names(MasterWeights) { return kWords<"fp32", "split", "bf16">; }
inline ChoiceNames choice_names(SumDtype) { return kWords<"fp32", "bf16">; }
inline ChoiceNames choice_names(DeterministicReduction) { return kWords<"fixed_order", "rank_invariant">; }
inline ChoiceNames choice_names(EvalWeights) { return kWords<"current", "average", "ema">; }
inline ChoiceNames choice_names(Packing) { return kWords<"contiguous", "best_fit">; }
inline ChoiceNames choice_names(FimLevel) { return kWords<"token", "character">; }
inline ChoiceNames choice_names(AsyncSave) { return kWords<"auto", "on", "off">; }
inline ChoiceNames choice_names(Offload) { return kWords<"none", "cpu", "auto">; }
inline ChoiceNames choice_names(RecomputeGranularity) { return kWords<"none", "selective", "full">; }
inline ChoiceNames choice_names(Progress) { return kWords<"auto", "on", "off">; }
inline ChoiceNames choice_names(TokenDtype) {
  return kWords<"auto", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64">;
}
inline ChoiceNames choice_names(LoraVariant) { return kWords<"lora", "rslora", "dora">; }
inline ChoiceNames choice_names(BasePrecision) { return kWords<"none", "nf4">; }
inline ChoiceNames choice_names(OnResume) { return kWords<"free", "notice", "refused">; }
namespace log {  // here so that argument-dependent lookup finds it
inline ChoiceNames choice_names(Level) { return kWords<"debug", "info", "warn", "error", "off">; }
}  // namespace log

// The JSON name of a value.
inline std::string_view word_of(ChoiceNames names, int value) {
  CHECK(size_t(value) < names.size(), "no name for value ", value);
  return names[size_t(value)];
}
template <class E>
requires requires(E value) { choice_names(value); }
std::string_view name_of(E value) { return word_of(choice_names(value), int(value)); }

}  // namespace athanor
