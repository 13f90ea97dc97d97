// Enums of configuration choices, shared by the configuration and the code that acts on them. Their names in
// configuration files are in config/choices.h.
#pragma once
#include <cstdint>

namespace athanor {

// Schedule of the learning rate; see ops/schedule.h.
enum class DecayStyle : uint8_t { constant, linear, cosine, wsd, inverse_sqrt, one_cycle, exponential };
enum class WsdDecay : uint8_t { linear, cosine, minus_sqrt, exponential };
enum class WeightDecayStyle : uint8_t { constant, linear, cosine };

// Optimizers, and the roles by which they treat weights: vectors (norm weights, biases) have no weight decay.
enum class RuleName : uint8_t {
  adamw,
  adam,
  sgd,
  lion,
  muon,
  normuon,
  adamw_8bit,
  lamb,
  schedule_free_adamw,
  adafactor,
  onebit_adam,
  onebit_lamb
};
// True for rules that stop all-reducing gradients over workers once the variance is frozen.
constexpr bool compresses(RuleName rule) { return rule == RuleName::onebit_adam || rule == RuleName::onebit_lamb; }
// Format of the deltas that workers of local updates exchange: f32, or 4 bits per element (ops/packed_groups.h).
enum class DeltaDtype : uint8_t { fp32, fp4 };
enum class MuonScale : uint8_t { original, match_rms, spectral };
enum class MuonCoefficients : uint8_t { quintic, polar_express };
enum class Role : uint8_t { matrix, embedding, vector };

// FP8 format of gradients; automatic: the format of the recipe.
enum class GradientFormat : uint8_t { automatic, e5m2, e4m3 };

// Format of the weights of linear layers in a model that is only evaluated: as the precision says; int8 with
// activations quantized row by row (ops/int8_gemm.h); or int8 with activation outliers kept in floating point.
enum class InferenceWeights : uint8_t { as_precision, int8, llm_int8 };

// Distillation loss between the student's and the teacher's distribution: KL(teacher, student), KL(student, teacher),
// or the difference of their sorted probabilities, which allows different tokenizers (ULD).
enum class DistillLoss : uint8_t { kl, reverse_kl, uld };

// Which weights pruning removes: the smallest, or the two smallest of every four consecutive ones; scope: ranked per
// layer or over the whole model.
enum class PrunePattern : uint8_t { unstructured, two_of_four };
enum class PruneScope : uint8_t { layer, global };
// magnitude: pruned weights are zero and stay zero. srste: weights stay dense, and GEMMs use a copy with zeros.
enum class PruneMethod : uint8_t { magnitude, srste };

// Activation of feed-forward layers, named as in transformers.
// gelu: the tanh form; gelu_erf: the exact form.
enum class Activation : uint8_t { gelu, silu, relu, relu2, gelu_erf };

// Multi-token prediction: maximum number of tokens after the next one that a position predicts.
constexpr int kMaxTokensAhead = 8;

// How the router scores an expert: softmax over all experts, or the sigmoid of its own logit.
enum class RouterScore : uint8_t { softmax, sigmoid };
// The balance loss of a router counts how many tokens chose each expert: among the tokens of a sequence, of a
// micro-batch, or of the global batch.
enum class AuxLossScope : uint8_t { sequence, micro_batch, global_batch };

// Drop probability of a block's branches: proportional to the block's index, or the same for all blocks.
enum class StochasticDepthMode : uint8_t { linear, uniform };

enum class RecomputeGranularity : uint8_t { none, selective, full };

// How context-parallel ranks exchange keys and values: by an all-gather, or one rank after the other (ring attention);
// automatic: whichever has the shorter modelled step.
enum class ContextMethod : uint8_t { automatic, gather, ring };

// Order in which a pipeline stage runs its micro-batches; see pipeline/program.h.
enum class PipelineSchedule : uint8_t { one_f_one_b, interleaved, gpipe, zb1p, zbv };
// True if backward is split in two: activation gradients first, weight gradients later.
constexpr bool splits_backward(PipelineSchedule s) { return s == PipelineSchedule::zb1p || s == PipelineSchedule::zbv; }

// cudnn: cuDNN's attention wherever it supports the problem. automatic: cuDNN's if the plan has memory for it, unless
// autotuning finds the built-in one faster; for documents and windows only if autotuning finds cuDNN faster.
enum class CudaAttention : uint8_t { automatic, builtin, cudnn };

enum class Progress : uint8_t {
  automatic,  // on a terminal, unless NO_COLOR or CI is set or TERM is "dumb"
  on,         // always
  off,
};

}  // namespace athanor
