// Choices that a configuration makes and that code below it acts upon: one enum for both. The words of configurations
// are in config/choices.cc.
#pragma once
#include <cstdint>

namespace athanor {

// Schedule of the learning rate; see ops/schedule.h.
enum class DecayStyle : uint8_t { constant, linear, cosine, wsd, inverse_sqrt, one_cycle, exponential };
enum class WsdDecay : uint8_t { linear, cosine, minus_sqrt, exponential };
enum class WeightDecayStyle : uint8_t { constant, linear, cosine };

// Optimizers, and what they choose weights by: vectors (norm weights, biases) are not decayed.
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
// Whose gradients are not summed over workers once the variance is frozen.
constexpr bool compresses(RuleName rule) { return rule == RuleName::onebit_adam || rule == RuleName::onebit_lamb; }
enum class MuonScale : uint8_t { original, match_rms, spectral };
enum class MuonCoefficients : uint8_t { quintic, polar_express };
enum class Role : uint8_t { matrix, embedding, vector };

// FP8 format of gradients: automatic = as the recipe says.
enum class GradientCodes : uint8_t { automatic, e5m2, e4m3 };

// What the linear layers of a model that is only evaluated are: as the precision has it, in 8 bits with activations
// quantized row by row (ops/int8_gemm.h), or the same with outliers of the activations apart.
enum class InferenceWeights : uint8_t { as_precision, int8, llm_int8 };

// What a student's distribution is compared with its teacher's by: KL(teacher, student), KL(student, teacher), or the
// difference of their sorted probabilities, whose tokens may be others (ULD).
enum class DistillLoss : uint8_t { kl, reverse_kl, uld };

// Which weights pruning removes: the smallest, or of every four in a row the two smallest; and among which.
enum class PrunePattern : uint8_t { unstructured, two_of_four };
enum class PruneScope : uint8_t { layer, global };
// magnitude: pruned weights are zero and stay zero. srste: weights stay dense, and GEMMs read them with zeros.
enum class PruneMethod : uint8_t { magnitude, srste };

// Activation of feed-forward layers, in the words of transformers.
enum class Activation : uint8_t { gelu, silu, relu, relu2 };

// What an expert's score is made of by the router: its probability among all experts, or the logistic function of its
// logit alone.
enum class RouterScore : uint8_t { softmax, sigmoid };

// Probability with which a block's branches are dropped: in proportion to its number, or the same in all.
enum class StochasticDepthMode : uint8_t { linear, uniform };

enum class RecomputeGranularity : uint8_t { none, selective, full };

// How ranks that share sequences get at each other's keys and values: all of them at once, or those of one rank after
// the other; automatic: whichever has the shorter modelled step.
enum class ContextMethod : uint8_t { automatic, gather, ring };

// In which order a pipeline stage runs its micro-batches: pipeline/program.h.
enum class PipelineSchedule : uint8_t { one_f_one_b, interleaved, gpipe, zb1p, zbv };
// Whether backward runs in two halves: gradients of activations, and later those of weights.
constexpr bool splits_backward(PipelineSchedule s) { return s == PipelineSchedule::zb1p || s == PipelineSchedule::zbv; }

// cudnn: its attention wherever it can; automatic: where a plan has memory for it, unless the program's own is found to
// be faster (Tuning), and for documents and windows only where it is found to be the faster one.
enum class CudaAttention : uint8_t { automatic, builtin, cudnn };

enum class Progress : uint8_t {
  automatic,  // on a terminal, unless NO_COLOR or CI is set or TERM is "dumb"
  on,         // always
  off,
};

}  // namespace athanor
