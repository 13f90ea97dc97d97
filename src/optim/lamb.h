// Functions shared by lamb and onebit_lamb.
#pragma once
#include "optim/rule.h"

namespace athanor {

// This rank's shard of a unit's master weights in f32: the master weights themselves, or a converted copy.
struct F32Masters {
  Buffer copy;
  const ParamStore::Unit& unit;
  F32Masters(Ctx& c, const ParamStore::Unit& of);
  Tensor part(ParamStore::Range range) const { return copy ? unit.part(copy.t, range) : unit.masters_on_device(range); }
};

// Returns the passes: directions and squared norms; reduction over ranks; scaling and the weight update.
std::vector<UpdatePass> lamb_passes();

// State of onebit_lamb [2] per tensor, replicated on all ranks: {average, factor} of its trust ratios.
constexpr size_t kTrustState = 4;  // index among the rule's states
Tensor trust_of(const ParamStore&, const Placed&, const UpdateRange&);

// Scales the update directions that were stored in place of the gradients. sums: per tensor [2, leaves], as in
// ScaleByTrustRatio.
void scale_by_trust_ratios(Ctx&, const ParamStore&, const Placed&, int64_t leaves, const Tensor& sums);
// Moves the weights along the directions, which already include the decay.
void move_without_decay(Ctx&, const RuleOptions&, const ParamStore&, const Placed&, Tensor step_state);

}  // namespace athanor
