// The CPU backend: every op on host memory, with one thread pool. One .cc per family of ops, named as in ops/.
#pragma once
#include "cpu/thread_pool.h"
#include "ops/ops.h"

namespace athanor {

class CpuOps final : public Ops {
 public:
  // pool must outlive the ops.
  explicit CpuOps(ThreadPool& pool) : pool_(pool) {}
  using Ops::fuses;
  using Ops::run;
  using Ops::scratch;

  // gemm.cc
  void run(const Gemm&, void* scratch) override;
  void run(const ColumnSum&, void* scratch) override;
  size_t scratch(const Gemm&) const override;
  size_t scratch(const ColumnSum&) const override;
  // attention.cc, attention_bwd.cc, rope.cc
  void run(const AttentionFwd&, void* scratch) override;
  void run(const AttentionBwd&, void* scratch) override;
  void run(const MergeAttention&, void* scratch) override;
  void run(const AttentionSinks&, void* scratch) override;
  void run(const AttentionSinksBwd&, void* scratch) override;
  void run(const Rope&, void* scratch) override;
  size_t scratch(const AttentionFwd&) const override;
  size_t scratch(const AttentionBwd&) const override;
  // norm.cc
  void run(const NormFwd&, void* scratch) override;
  void run(const NormApply&, void* scratch) override;
  void run(const NormBwd&, void* scratch) override;
  void run(const QkNormFwd&, void* scratch) override;
  void run(const QkNormBwd&, void* scratch) override;
  void run(const QkNormSums&, void* scratch) override;
  size_t scratch(const NormFwd&) const override;
  size_t scratch(const NormApply&) const override;
  size_t scratch(const NormBwd&) const override;
  size_t scratch(const QkNormFwd&) const override;
  size_t scratch(const QkNormBwd&) const override;
  size_t scratch(const QkNormSums&) const override;
  // mlp.cc
  void run(const GeluFwd&, void* scratch) override;
  void run(const GeluBwd&, void* scratch) override;
  void run(const SwigluFwd&, void* scratch) override;
  void run(const SwigluBwd&, void* scratch) override;
  void run(const ActivationFwd&, void* scratch) override;
  void run(const ActivationBwd&, void* scratch) override;
  void run(const ScaledSum&, void* scratch) override;
  void run(const ScaledSumBwd&, void* scratch) override;
  size_t scratch(const ScaledSumBwd&) const override;
  void run(const GatedSum&, void* scratch) override;
  void run(const GatedSumBwd&, void* scratch) override;
  size_t scratch(const GatedSumBwd&) const override;
  // embedding.cc
  void run(const EmbeddingFwd&, void* scratch) override;
  void run(const Patchify&, void* scratch) override;
  void run(const EmbeddingBwd&, void* scratch) override;
  void run(const GatherRows&, void* scratch) override;
  void run(const ScatterRows&, void* scratch) override;
  size_t scratch(const EmbeddingBwd&) const override;
  // loss.cc
  void run(const CrossEntropy&, void* scratch) override;
  void run(const DistilledCrossEntropy&, void* scratch) override;
  void run(const RowMax&, void* scratch) override;
  void run(const LogitSums&, void* scratch) override;
  void run(const DistillSums&, void* scratch) override;
  void run(const SourceLosses&, void* scratch) override;
  // top_logits.cc
  void run(const TopLogits&, void* scratch) override;
  void run(const PickLogits&, void* scratch) override;
  void run(const CachedDistilledCrossEntropy&, void* scratch) override;
  void run(const OneBitMomentum&, void* scratch) override;
  void run(const OneBitMean&, void* scratch) override;
  void run(const OneBitDirection&, void* scratch) override;
  void run(const PackGroups&, void* scratch) override;
  void run(const SumGroups&, void* scratch) override;
  // basic.cc, random_normal.cc
  void run(const Fill&, void* scratch) override;
  void run(const Cast&, void* scratch) override;
  void run(const MaskedFill&, void* scratch) override;
  void run(const Add&, void* scratch) override;
  void run(const ReduceSum&, void* scratch) override;
  void run(const SquaredNorm&, void* scratch) override;
  void run(const RandomNormal&, void* scratch) override;
  void run(const DropPath&, void* scratch) override;
  size_t scratch(const ReduceSum&) const override;
  size_t scratch(const SquaredNorm&) const override;
  // adamw.cc, schedule_free.cc, sgd.cc, lion.cc, ema.cc
  void run(const AdamW&, void* scratch) override;
  void run(const AdamW8bit&, void* scratch) override;
  void run(const Sgd&, void* scratch) override;
  void run(const Lion&, void* scratch) override;
  void run(const ScheduleFreeAdamW&, void* scratch) override;
  void run(const Ema&, void* scratch) override;
  // lamb.cc
  void run(const AdamDirection&, void* scratch) override;
  void run(const ScaleByTrustRatio&, void* scratch) override;
  void run(const AverageTrustRatio&, void* scratch) override;
  void run(const FrozenTrustRatio&, void* scratch) override;
  // output_scaling.cc
  void run(const OutputSquares&, void* scratch) override;
  void run(const ScaleOutputs&, void* scratch) override;
  void run(const QkClip&, void* scratch) override;
  // adafactor.cc
  void run(const FactoredMoments&, void* scratch) override;
  void run(const ClipFactors&, void* scratch) override;
  // muon.cc
  void run(const Momentum&, void* scratch) override;
  void run(const NormalizeMatrix&, void* scratch) override;
  void run(const Combine&, void* scratch) override;
  void run(const Orthogonalize&, void* scratch) override;
  void run(const NormalizeNeurons&, void* scratch) override;
  bool fuses(const Orthogonalize&) const override { return true; }
  size_t scratch(const NormalizeMatrix&) const override;
  size_t scratch(const Orthogonalize&) const override;
  size_t scratch(const NormalizeNeurons&) const override;
  // optimizer.cc
  void run(const StepControl&, void* scratch) override;
  void run(const SplitMaster&, void* scratch) override;
  void run(const JoinMaster&, void* scratch) override;
  // quantize.cc
  void run(const Quantize&, void* scratch) override;
  void run_transposed(const Quantize&, void* scratch);
  void run(const AmaxOfPart&, void* scratch) override;
  void run(const QuantizePart&, void* scratch) override;
  void run(const ScaledGemm&, void* scratch) override;
  void run(const DelayedScales&, void* scratch) override;
  size_t scratch(const Quantize&) const override;
  size_t scratch(const ScaledGemm&) const override;
  // int8_gemm.cc
  void run(const Int8Gemm&, void* scratch) override;
  size_t scratch(const Int8Gemm&) const override;
  // nf4.cc, dora.cc
  void run(const DequantizeNf4&, void* scratch) override;
  void run(const ScaleByMagnitude&, void* scratch) override;
  void run(const ScaleByMagnitudeBwd&, void* scratch) override;
  size_t scratch(const ScaleByMagnitudeBwd&) const override;
  // two_of_four.cc
  void run(const KeepTwoOfFour&, void* scratch) override;
  void run(const DecayPruned&, void* scratch) override;
  // moe.cc, grouped_gemm.cc
  void run(const RouteFwd&, void* scratch) override;
  void run(const DropChoices&, void* scratch) override;
  void run(const CountExperts&, void* scratch) override;
  void run(const ExpertLoads&, void* scratch) override;
  void run(const RouteBwd&, void* scratch) override;
  void run(const StepRouterBias&, void* scratch) override;
  void run(const SortByExpert&, void* scratch) override;
  void run(const SendSlots&, void* scratch) override;
  void run(const ReceiveSlots&, void* scratch) override;
  void run(const SumRows&, void* scratch) override;
  void run(const WeightedSwigluFwd&, void* scratch) override;
  void run(const WeightedSwigluBwd&, void* scratch) override;
  void run(const GroupedGemm&, void* scratch) override;
  size_t scratch(const RouteBwd&) const override;
  size_t scratch(const GroupedGemm&) const override;

 private:
  CpuOps single() const { return CpuOps(alone_); }
  ThreadPool& pool_;
  mutable ThreadPool alone_{1};  // for ops that one thread of pool_ runs alone
};

}  // namespace athanor
