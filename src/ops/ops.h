// The list of ops. A backend derives from Ops and implements run() for every op; a missing one does not compile or
// link.
#pragma once
#include "ops/activation.h"
#include "ops/adafactor.h"
#include "ops/attention.h"
#include "ops/attention_sinks.h"
#include "ops/basic.h"
#include "ops/biased_experts.h"
#include "ops/dora.h"
#include "ops/dropout.h"
#include "ops/embedding.h"
#include "ops/gated_sum.h"
#include "ops/gemm.h"
#include "ops/int8_gemm.h"
#include "ops/lamb.h"
#include "ops/latent_heads.h"
#include "ops/loss.h"
#include "ops/mlp.h"
#include "ops/moe.h"
#include "ops/muon.h"
#include "ops/nf4.h"
#include "ops/norm.h"
#include "ops/one_bit.h"
#include "ops/optimizer.h"
#include "ops/output_scaling.h"
#include "ops/packed_groups.h"
#include "ops/qk_clip.h"
#include "ops/quantize_part.h"
#include "ops/source_losses.h"
#include "ops/top_logits.h"
#include "ops/two_of_four.h"
#include "ops/update.h"

namespace athanor {

// X(Op) for every op.
// clang-format off
#define ATHANOR_EACH_OP(X) \
  X(Gemm) X(ColumnSum) X(NormFwd) X(NormApply) X(NormBwd) X(QkNormFwd) X(QkNormBwd) X(QkNormSums) X(AttentionFwd) \
  X(AttentionBwd) X(MergeAttention) X(Rope) X(GeluFwd) X(GeluBwd) X(SwigluFwd) X(SwigluBwd) X(EmbeddingFwd) X(EmbeddingBwd) \
  X(Patchify) X(GatherRows) X(ScatterRows) X(CrossEntropy) X(RowMax) X(LogitSums) X(DistillSums) X(DistilledCrossEntropy) X(Fill) X(MaskedFill) \
  X(Cast) X(Add) X(ReduceSum) X(SquaredNorm) X(RandomNormal) X(StepControl) X(AdamW) X(AdamW8bit) \
  X(ScheduleFreeAdamW) X(Sgd) X(Lion) X(Ema) X(AdamDirection) X(ScaleByTrustRatio) X(AverageTrustRatio) \
  X(FrozenTrustRatio) X(OutputSquares) X(ScaleOutputs) X(FactoredMoments) X(ClipFactors) X(Momentum) \
  X(NormalizeMatrix) X(Combine) X(Orthogonalize) X(NormalizeNeurons) X(SplitMaster) X(JoinMaster) X(QkClip) X(Quantize) \
  X(AmaxOfPart) X(QuantizePart) X(ScaledGemm) X(DelayedScales) X(RouteFwd) X(DropChoices) X(RouteBwd) \
  X(CountExperts) X(ExpertLoads) \
  X(StepRouterBias) X(SortByExpert) X(SendSlots) X(ReceiveSlots) X(SumRows) X(WeightedSwigluFwd) X(WeightedSwigluBwd) \
  X(GroupedGemm) X(ActivationFwd) X(ActivationBwd) X(ScaledSum) X(ScaledSumBwd) X(GatedSum) X(GatedSumBwd) \
  X(DequantizeNf4) X(ScaleByMagnitude) X(ScaleByMagnitudeBwd) X(KeepTwoOfFour) X(DecayPruned) X(TopLogits) \
  X(PickLogits) X(CachedDistilledCrossEntropy) X(OneBitMomentum) X(OneBitMean) X(OneBitDirection) X(PackGroups) X(SumGroups) \
  X(AttentionSinks) X(AttentionSinksBwd) X(DropPath) X(Int8Gemm) X(SourceLosses) X(LatentHeads) X(LatentHeadsBwd) \
  X(AddExpertBias) X(AddExpertBiasBwd) X(ClampedGluFwd) X(ClampedGluBwd)
// clang-format on

// run() launches on the compute stream; scratch() returns the bytes of temporary memory that it needs, a pure function
// of the op.
class Ops {
 public:
  virtual ~Ops() = default;
#define ATHANOR_OP(Op)                            \
  virtual void run(const Op&, void* scratch) = 0; \
  virtual size_t scratch(const Op&) const { return 0; }
  ATHANOR_EACH_OP(ATHANOR_OP)
#undef ATHANOR_OP

  // True if the op can run fused with its epilogue in one kernel, regardless of what autotuning decides; depends only
  // on sizes and dtypes. Layers then request SwiGLU or RoPE as an epilogue, and RoPE's backward within attention's.
  virtual bool fuses(const Gemm&) const { return false; }
  virtual bool fuses(const AttentionBwd&) const { return false; }  // with cos_sin
  virtual bool fuses(const GroupedGemm&) const { return false; }   // with h
  virtual bool fuses(const Orthogonalize&) const { return false; }
  virtual ScaledGemmPlan plan_scaled_gemm(const ScaledGemm&) const { return {}; }
  // True if quantized GEMMs expect K contiguous in both operands, so that callers should have Quantize write transposed
  // values where needed.
  virtual bool transposes_quantized() const { return false; }
};

}  // namespace athanor
