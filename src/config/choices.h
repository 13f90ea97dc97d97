// The words of every enum of the configuration, in the order of the enumerators.
#pragma once
#include <span>
#include <string_view>

#include "config/config.h"

namespace athanor {

using ChoiceNames = std::span<const std::string_view>;

ChoiceNames choice_names(ModelType);
ChoiceNames choice_names(RopeType);
ChoiceNames choice_names(DeviceChoice);
ChoiceNames choice_names(CpuGemm);
ChoiceNames choice_names(AttentionChoice);
ChoiceNames choice_names(OptimizerChoice);
ChoiceNames choice_names(GroupOptimizer);
ChoiceNames choice_names(GroupRole);
ChoiceNames choice_names(MuonScaleRule);
ChoiceNames choice_names(MuonPolynomial);
ChoiceNames choice_names(LrDecayStyle);
ChoiceNames choice_names(WsdDecayStyle);
ChoiceNames choice_names(WeightDecayCourse);
ChoiceNames choice_names(Precision);
ChoiceNames choice_names(Fp8Format);
ChoiceNames choice_names(MasterWeights);
ChoiceNames choice_names(MomentDtype);
ChoiceNames choice_names(DeterministicReduction);
ChoiceNames choice_names(Transport);
ChoiceNames choice_names(AsyncSave);
ChoiceNames choice_names(RecomputeGranularity);
ChoiceNames choice_names(ProgressMode);
ChoiceNames choice_names(TokenDtype);
ChoiceNames choice_names(OnResume);
namespace log {
ChoiceNames choice_names(Level);  // beside its enum, where lookup by argument finds it
}

}  // namespace athanor
