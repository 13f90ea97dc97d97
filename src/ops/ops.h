// THE LIST of ops. A backend derives from Ops and implements run() for every one; missing one does not compile.
#pragma once
#include "ops/activation.h"
#include "ops/adafactor.h"
#include "ops/attention.h"
#include "ops/attention_sinks.h"
#include "ops/basic.h"
#include "ops/dora.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/gated_sum.h"
#include "ops/gemm.h"
#include "ops/int8_gemm.h"
#include "ops/lamb.h"
#include "ops/loss.h"
#include "ops/mlp.h"
#include "ops/moe.h"
#include "ops/muon.h"
#include "ops/nf4.h"
#include "ops/norm.h"
#include "ops/one_bit.h"
#include "ops/optimizer.h"
#include "ops/output_scaling.h"
#include "ops/qk_clip.h"
#include "ops/quantize_part.h"
#include "ops/top_logits.h"
#include "ops/two_of_four.h"
#include "ops/update.h"

namespace athanor {

#define ATHANOR_ALL_OPS                                                                                                \
  Gemm, ColumnSum, NormFwd, NormApply, NormBwd, QkNormFwd, QkNormBwd, AttentionFwd, AttentionBwd, MergeAttention,      \
      Rope, GeluFwd, GeluBwd, SwigluFwd, SwigluBwd, EmbeddingFwd, EmbeddingBwd, GatherRows, ScatterRows, CrossEntropy, \
      RowMax, LogitSums, DistilledCrossEntropy, Fill, MaskedFill, Cast, Add, ReduceSum, SquaredNorm, RandomNormal,     \
      StepControl, AdamW, AdamW8bit, ScheduleFreeAdamW, Sgd, Lion, Ema, AdamDirection, ScaleByTrustRatio,              \
      OutputSquares, ScaleOutputs, FactoredMoments, ClipFactors, Momentum, NormalizeMatrix, Combine, NormalizeNeurons, \
      SplitMaster, JoinMaster, QkClip, Quantize, LargestOfPart, QuantizePart, ScaledGemm, DelayedScales, RouteFwd,     \
      RouteBwd, StepRouterBias, SortByExpert, SendSlots, ReceiveSlots, SumRows, WeightedSwigluFwd, WeightedSwigluBwd,  \
      GroupedGemm, ActivationFwd, ActivationBwd, ScaledSum, ScaledSumBwd, GatedSum, GatedSumBwd, Dropout,              \
      DequantizeNf4, ScaleByMagnitude, ScaleByMagnitudeBwd, KeepTwoOfFour, DecayPruned, TopLogits, PickLogits,         \
      CachedDistilledCrossEntropy, OneBitMomentum, OneBitMean, OneBitDirection, AttentionSinks, AttentionSinksBwd,     \
      DropPath, Int8Gemm

// run() launches on the compute stream; scratch() is the temporary memory it needs (bytes), a pure function of the op.
template <class Op>
struct Runs {
  virtual void run(const Op&, void* scratch) = 0;
  virtual size_t scratch(const Op&) const { return 0; }

 protected:
  ~Runs() = default;
};
template <class... Op>
struct OpsOf : Runs<Op>... {
  using Runs<Op>::run...;
  using Runs<Op>::scratch...;
  // Whether the op may run in one launch with its epilogue, where that is not a matter of trial alone; of sizes and
  // types only. Layers then ask for SwiGLU or RoPE as an epilogue, and for gradients of attention that are turned back.
  virtual bool fuses(const Gemm&) const { return false; }
  virtual bool fuses(const AttentionBwd&) const { return false; }  // with angles
  virtual ~OpsOf() = default;
  virtual CodeProduct code_product(const ScaledGemm&) const { return {}; }
  // Whether products of codes read factors with the terms of the sums in their rows, so that Quantize is best asked for
  // codes that lie so.
  virtual bool turns_codes() const { return false; }
};
using Ops = OpsOf<ATHANOR_ALL_OPS>;

}  // namespace athanor
