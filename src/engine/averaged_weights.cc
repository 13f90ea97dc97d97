#include "engine/averaged_weights.h"

#include <algorithm>

namespace athanor {
namespace {

const Tensor& weights_of(const ParamStore::Unit& unit) { return unit.value ? unit.value : unit.master; }

}  // namespace

bool AveragedWeights::set_aside() const { return !params_.units().front()->value || params_.split(); }

void AveragedWeights::plan(MemoryPlan& plan) {
  const auto& states = params_.state_specs();
  const auto at = std::ranges::find(states, kEmaState, &StateSpec::name);
  CHECK(at != states.end(), "no averages of the weights");
  state_ = size_t(at - states.begin());
  aside_.resize(params_.units().size());
  for (size_t u = 0; set_aside() && u < aside_.size(); ++u) {
    const ParamStore::Unit& unit = *params_.units()[u];
    const Tensor& averages = unit.states[state_].t;
    if (averages)
      plan.add(MemoryKind::weights, cat("weights of unit ", u, " during evaluations"), weights_of(unit).dtype,
               averages.shape, &aside_[u]);
  }
}

template <class Fn>
void AveragedWeights::for_each(const Fn& fn) const {
  for (size_t u = 0; u < params_.units().size(); ++u) {
    const ParamStore::Unit& unit = *params_.units()[u];
    const ParamStore::State& averages = unit.states[state_];
    for (const auto& [begin, end, at] : averages.segments) {
      const int64_t size = end - begin;
      fn(averages.t.slice(at, at + size), unit.part(weights_of(unit), {begin, end}),
         aside_[u] ? aside_[u].slice(at, at + size) : Tensor{});
    }
  }
}

void AveragedWeights::put_in(Ctx& c) {
  for_each([&](const Tensor& averages, const Tensor& weights, const Tensor& aside) {
    if (aside) c.run(Cast{.y = aside, .x = weights});
    c.run(Cast{.y = weights, .x = averages});
  });
  params_.gather_weights(c);
}

void AveragedWeights::take_out(Ctx& c) {
  if (!set_aside()) return params_.refresh_values(c);
  for_each([&](const Tensor&, const Tensor& weights, const Tensor& aside) { c.run(Cast{.y = weights, .x = aside}); });
  params_.gather_weights(c);
}

}  // namespace athanor
