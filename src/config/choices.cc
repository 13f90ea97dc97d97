// JSON names of the enums.
#include "config/choices.h"

#include "base/error.h"

namespace athanor {
namespace {

constexpr std::string_view kModelTypes[] = {"gpt2",        "llama",       "qwen2",     "qwen3", "mistral",
                                            "mixtral",     "qwen2_moe",   "qwen3_moe", "olmoe", "dots1",
                                            "deepseek_v2", "deepseek_v3", "athanor",   "vit"};
constexpr std::string_view kRopeTypes[] = {"none", "linear", "llama3", "yarn", "proportional"};
constexpr std::string_view kRouterScores[] = {"softmax", "sigmoid"};
constexpr std::string_view kAuxLossScopes[] = {"sequence", "micro_batch", "global_batch"};
constexpr std::string_view kActivations[] = {"gelu_pytorch_tanh", "silu", "relu", "relu2", "gelu"};
constexpr std::string_view kSublayerNorms[] = {"before", "after", "both"};
constexpr std::string_view kLayerTypes[] = {"full_attention", "sliding_attention", "sparse_attention"};
constexpr std::string_view kDevices[] = {"auto", "cpu", "cuda"};
constexpr std::string_view kAttentions[] = {"auto", "builtin", "cudnn"};
constexpr std::string_view kContextMethods[] = {"auto", "gather", "ring"};
constexpr std::string_view kPipelineSchedules[] = {"1f1b", "interleaved", "gpipe", "zb1p", "zbv"};
constexpr std::string_view kOptimizers[] = {
    "adamw",     "adam",        "sgd",        "lion", "muon", "normuon", "adamw_8bit", "lamb", "schedule_free_adamw",
    "adafactor", "onebit_adam", "onebit_lamb"};
constexpr std::string_view kGroupOptimizers[] = {
    "inherit",   "adamw",       "adam",       "sgd",  "lion",
    "muon",      "normuon",     "adamw_8bit", "lamb", "schedule_free_adamw",
    "adafactor", "onebit_adam", "onebit_lamb"};
constexpr std::string_view kGroupRoles[] = {"any", "matrix", "embedding", "vector"};
constexpr std::string_view kDeltaDtypes[] = {"fp32", "fp4"};
constexpr std::string_view kMuonScales[] = {"original", "match_rms", "spectral"};
constexpr std::string_view kStochasticDepthModes[] = {"linear", "uniform"};
constexpr std::string_view kDistillLosses[] = {"kl", "reverse_kl", "uld"};
constexpr std::string_view kPrunePatterns[] = {"unstructured", "2:4"};
constexpr std::string_view kPruneScopes[] = {"layer", "global"};
constexpr std::string_view kPruneMethods[] = {"magnitude", "srste"};
constexpr std::string_view kMuonCoefficients[] = {"quintic", "polar_express"};
constexpr std::string_view kDecayStyles[] = {"constant",     "linear", "cosine",     "WSD",
                                             "inverse_sqrt", "1cycle", "exponential"};
constexpr std::string_view kWsdDecays[] = {"linear", "cosine", "minus_sqrt", "exponential"};
constexpr std::string_view kWeightDecayStyles[] = {"constant", "linear", "cosine"};
constexpr std::string_view kPrecisions[] = {"fp32",           "tf32",        "bf16",        "fp16",
                                            "fp8_tensorwise", "fp8_delayed", "fp8_rowwise", "fp8_rowwise_gw_hp",
                                            "fp8_blockwise",  "mxfp8",       "nvfp4"};
constexpr std::string_view kGradientFormat[] = {"auto", "hybrid", "e4m3"};
constexpr std::string_view kAmaxComputeAlgos[] = {"max", "most_recent"};
constexpr std::string_view kMasterWeights[] = {"fp32", "split", "bf16"};
constexpr std::string_view kSumDtypes[] = {"fp32", "bf16"};
constexpr std::string_view kPackings[] = {"contiguous", "best_fit"};
constexpr std::string_view kFimLevels[] = {"token", "character"};
constexpr std::string_view kEvalWeights[] = {"current", "average", "ema"};
constexpr std::string_view kAsyncSave[] = {"auto", "on", "off"};
constexpr std::string_view kOffload[] = {"none", "cpu", "auto"};
constexpr std::string_view kDeterministicReduction[] = {"fixed_order", "rank_invariant"};
constexpr std::string_view kRecompute[] = {"none", "selective", "full"};
constexpr std::string_view kProgress[] = {"auto", "on", "off"};
constexpr std::string_view kTokenDtypes[] = {"auto", "uint8", "uint16", "uint32", "uint64",
                                             "int8", "int16", "int32",  "int64"};
constexpr std::string_view kLoraVariants[] = {"lora", "rslora", "dora"};
constexpr std::string_view kBasePrecisions[] = {"none", "nf4"};
constexpr std::string_view kLogLevels[] = {"debug", "info", "warn", "error", "off"};
constexpr std::string_view kRules[] = {"free", "notice", "refused"};

}  // namespace

ChoiceNames choice_names(ModelType) { return kModelTypes; }
ChoiceNames choice_names(RopeType) { return kRopeTypes; }
ChoiceNames choice_names(RouterScore) { return kRouterScores; }
ChoiceNames choice_names(AuxLossScope) { return kAuxLossScopes; }
ChoiceNames choice_names(Activation) { return kActivations; }
ChoiceNames choice_names(LayerType) { return kLayerTypes; }
ChoiceNames choice_names(SublayerNorm) { return kSublayerNorms; }
ChoiceNames choice_names(DeviceChoice) { return kDevices; }
ChoiceNames choice_names(CudaAttention) { return kAttentions; }
ChoiceNames choice_names(ContextMethod) { return kContextMethods; }
ChoiceNames choice_names(PipelineSchedule) { return kPipelineSchedules; }
ChoiceNames choice_names(RuleName) { return kOptimizers; }
ChoiceNames choice_names(std::optional<RuleName>) { return kGroupOptimizers; }
ChoiceNames choice_names(std::optional<Role>) { return kGroupRoles; }
ChoiceNames choice_names(DeltaDtype) { return kDeltaDtypes; }
ChoiceNames choice_names(MuonScale) { return kMuonScales; }
ChoiceNames choice_names(StochasticDepthMode) { return kStochasticDepthModes; }
ChoiceNames choice_names(DistillLoss) { return kDistillLosses; }
ChoiceNames choice_names(PrunePattern) { return kPrunePatterns; }
ChoiceNames choice_names(PruneScope) { return kPruneScopes; }
ChoiceNames choice_names(PruneMethod) { return kPruneMethods; }
ChoiceNames choice_names(MuonCoefficients) { return kMuonCoefficients; }
ChoiceNames choice_names(DecayStyle) { return kDecayStyles; }
ChoiceNames choice_names(WsdDecay) { return kWsdDecays; }
ChoiceNames choice_names(WeightDecayStyle) { return kWeightDecayStyles; }
ChoiceNames choice_names(Precision) { return kPrecisions; }
ChoiceNames choice_names(GradientFormat) { return kGradientFormat; }
ChoiceNames choice_names(AmaxComputeAlgo) { return kAmaxComputeAlgos; }
ChoiceNames choice_names(MasterWeights) { return kMasterWeights; }
ChoiceNames choice_names(SumDtype) { return kSumDtypes; }
ChoiceNames choice_names(EvalWeights) { return kEvalWeights; }
ChoiceNames choice_names(Packing) { return kPackings; }
ChoiceNames choice_names(FimLevel) { return kFimLevels; }
ChoiceNames choice_names(AsyncSave) { return kAsyncSave; }
ChoiceNames choice_names(Offload) { return kOffload; }
ChoiceNames choice_names(DeterministicReduction) { return kDeterministicReduction; }
ChoiceNames choice_names(RecomputeGranularity) { return kRecompute; }
ChoiceNames choice_names(Progress) { return kProgress; }
ChoiceNames choice_names(TokenDtype) { return kTokenDtypes; }
ChoiceNames choice_names(LoraVariant) { return kLoraVariants; }
ChoiceNames choice_names(BasePrecision) { return kBasePrecisions; }
ChoiceNames choice_names(OnResume) { return kRules; }
ChoiceNames log::choice_names(Level) { return kLogLevels; }

std::string_view word_of(ChoiceNames names, int value) {
  CHECK(size_t(value) < names.size(), "no name for value ", value);
  return names[size_t(value)];
}

}  // namespace athanor
