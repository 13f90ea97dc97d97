// What lamb and onebit_lamb have in common.
#pragma once
#include "optim/rule.h"

namespace athanor {

// This rank's shard of a unit's masters, in f32: a copy where they are kept otherwise.
struct F32Masters {
  Buffer copy;
  const ParamStore::Unit& unit;
  F32Masters(Ctx& c, const ParamStore::Unit& of);
  Tensor part(ParamStore::Range range) const { return copy ? unit.part(copy.t, range) : unit.masters_on_device(range); }
};

// Directions and what their scale follows from, the scale over all ranks, and the step.
std::vector<UpdatePass> lamb_passes();

// The average and the factor of a tensor's trust ratios [2], a state of onebit_lamb on all ranks.
constexpr size_t kTrustState = 4;  // its place among the rule's states
Tensor trust_of(const ParamStore&, const Placed&, const UpdateRange&);

// Scales the directions that have taken the gradients' place. sums: of each tensor [2, leaves], as those of
// ScaleByTrustRatio.
void scale_by_trust_ratios(Ctx&, const ParamStore&, const Placed&, int64_t leaves, const Tensor& sums);
// The decay is part of the directions.
void move_without_decay(Ctx&, const RuleOptions&, const ParamStore&, const Placed&, Tensor step_state);

}  // namespace athanor
