// The enums of a configuration and their names in JSON, which are listed in the order of the enumerators.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "base/choices.h"
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

ChoiceNames choice_names(ModelType);
ChoiceNames choice_names(RopeType);
ChoiceNames choice_names(Activation);
ChoiceNames choice_names(RouterScore);
ChoiceNames choice_names(AuxLossScope);
ChoiceNames choice_names(LayerType);
ChoiceNames choice_names(SublayerNorm);
ChoiceNames choice_names(DeviceChoice);
ChoiceNames choice_names(CudaAttention);
ChoiceNames choice_names(ContextMethod);
ChoiceNames choice_names(PipelineSchedule);
ChoiceNames choice_names(RuleName);
ChoiceNames choice_names(std::optional<RuleName>);
ChoiceNames choice_names(std::optional<Role>);
ChoiceNames choice_names(DeltaDtype);
ChoiceNames choice_names(MuonScale);
ChoiceNames choice_names(DistillLoss);
ChoiceNames choice_names(StochasticDepthMode);
ChoiceNames choice_names(PrunePattern);
ChoiceNames choice_names(PruneScope);
ChoiceNames choice_names(PruneMethod);
ChoiceNames choice_names(MuonCoefficients);
ChoiceNames choice_names(DecayStyle);
ChoiceNames choice_names(WsdDecay);
ChoiceNames choice_names(WeightDecayStyle);
ChoiceNames choice_names(Precision);
ChoiceNames choice_names(GradientFormat);
ChoiceNames choice_names(AmaxComputeAlgo);
ChoiceNames choice_names(MasterWeights);
ChoiceNames choice_names(SumDtype);
ChoiceNames choice_names(DeterministicReduction);
ChoiceNames choice_names(EvalWeights);
ChoiceNames choice_names(Packing);
ChoiceNames choice_names(FimLevel);
ChoiceNames choice_names(AsyncSave);
ChoiceNames choice_names(Offload);
ChoiceNames choice_names(RecomputeGranularity);
ChoiceNames choice_names(Progress);
ChoiceNames choice_names(TokenDtype);
ChoiceNames choice_names(LoraVariant);
ChoiceNames choice_names(BasePrecision);
ChoiceNames choice_names(OnResume);
namespace log {
ChoiceNames choice_names(Level);  // declared here so that argument-dependent lookup finds it
}

// The JSON name of a value.
std::string_view word_of(ChoiceNames names, int value);
template <class E>
requires requires(E value) { choice_names(value); }
std::string_view name_of(E value) { return word_of(choice_names(value), int(value)); }

}  // namespace athanor
