// ReferenceOps: the specification of every op as a backend. Plain single-threaded loops in double that read like the
// formulas in ops/; results are rounded once, where the op's header says so. Needs no scratch memory and is not
// optimized for speed.
#pragma once
#include <memory>

#include "ops/ops.h"

namespace athanor {

class ReferenceOps final : public Ops {
 public:
  void run(const Gemm&, void*) override;
  void run(const ColumnSum&, void*) override;
  void run(const NormFwd&, void*) override;
  void run(const NormApply&, void*) override;
  void run(const NormBwd&, void*) override;
  void run(const QkNormFwd&, void*) override;
  void run(const QkNormBwd&, void*) override;
  void run(const QkNormSums&, void*) override;
  void run(const AttentionFwd&, void*) override;
  void run(const AttentionBwd&, void*) override;
  void run(const MergeAttention&, void*) override;
  void run(const AttentionSinks&, void*) override;
  void run(const AttentionSinksBwd&, void*) override;
  void run(const Rope&, void*) override;
  void run(const GeluFwd&, void*) override;
  void run(const GeluBwd&, void*) override;
  void run(const SwigluFwd&, void*) override;
  void run(const SwigluBwd&, void*) override;
  void run(const EmbeddingFwd&, void*) override;
  void run(const Patchify&, void*) override;
  void run(const EmbeddingBwd&, void*) override;
  void run(const GatherRows&, void*) override;
  void run(const ScatterRows&, void*) override;
  void run(const CrossEntropy&, void*) override;
  void run(const DistilledCrossEntropy&, void*) override;
  void run(const RowMax&, void*) override;
  void run(const LogitSums&, void*) override;
  void run(const DistillSums&, void*) override;
  void run(const TopLogits&, void*) override;
  void run(const PickLogits&, void*) override;
  void run(const CachedDistilledCrossEntropy&, void*) override;
  void run(const OneBitMomentum&, void*) override;
  void run(const OneBitMean&, void*) override;
  void run(const OneBitDirection&, void*) override;
  void run(const PackGroups&, void*) override;
  void run(const SumGroups&, void*) override;
  void run(const Fill&, void*) override;
  void run(const Cast&, void*) override;
  void run(const MaskedFill&, void*) override;
  void run(const Add&, void*) override;
  void run(const ReduceSum&, void*) override;
  void run(const SquaredNorm&, void*) override;
  void run(const RandomNormal&, void*) override;
  void run(const DropPath&, void*) override;
  void run(const SourceLosses&, void*) override;
  void run(const StepControl&, void*) override;
  void run(const AdamW&, void*) override;
  void run(const AdamW8bit&, void*) override;
  void run(const Sgd&, void*) override;
  void run(const Lion&, void*) override;
  void run(const ScheduleFreeAdamW&, void*) override;
  void run(const Ema&, void*) override;
  void run(const AdamDirection&, void*) override;
  void run(const ScaleByTrustRatio&, void*) override;
  void run(const AverageTrustRatio&, void*) override;
  void run(const FrozenTrustRatio&, void*) override;
  void run(const OutputSquares&, void*) override;
  void run(const ScaleOutputs&, void*) override;
  void run(const QkClip&, void*) override;
  void run(const FactoredMoments&, void*) override;
  void run(const ClipFactors&, void*) override;
  void run(const Momentum&, void*) override;
  void run(const NormalizeMatrix&, void*) override;
  void run(const Orthogonalize&, void* scratch) override;
  size_t scratch(const Orthogonalize&) const override;
  void run(const Combine&, void*) override;
  void run(const NormalizeNeurons&, void*) override;
  void run(const SplitMaster&, void*) override;
  void run(const JoinMaster&, void*) override;
  void run(const Quantize&, void*) override;
  void run(const AmaxOfPart&, void*) override;
  void run(const QuantizePart&, void*) override;
  void run(const DelayedScales&, void*) override;
  void run(const ScaledGemm&, void*) override;
  void run(const RouteFwd&, void*) override;
  void run(const DropChoices&, void*) override;
  void run(const CountExperts&, void*) override;
  void run(const ExpertLoads&, void*) override;
  void run(const RouteBwd&, void*) override;
  void run(const StepRouterBias&, void*) override;
  void run(const SortByExpert&, void*) override;
  void run(const SendSlots&, void*) override;
  void run(const ReceiveSlots&, void*) override;
  void run(const SumRows&, void*) override;
  void run(const WeightedSwigluFwd&, void*) override;
  void run(const WeightedSwigluBwd&, void*) override;
  void run(const GroupedGemm&, void*) override;
  void run(const ActivationFwd&, void*) override;
  void run(const ActivationBwd&, void*) override;
  void run(const ScaledSum&, void*) override;
  void run(const ScaledSumBwd&, void*) override;
  void run(const GatedSum&, void*) override;
  void run(const GatedSumBwd&, void*) override;
  void run(const DequantizeNf4&, void*) override;
  void run(const Int8Gemm&, void*) override;
  void run(const ScaleByMagnitude&, void*) override;
  void run(const ScaleByMagnitudeBwd&, void*) override;
  void run(const KeepTwoOfFour&, void*) override;
  void run(const DecayPruned&, void*) override;
};

std::unique_ptr<Ops> make_reference();

}  // namespace athanor
