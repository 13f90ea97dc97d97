#include "engine/averaged_weights.h"

#include <algorithm>

namespace athanor {
namespace {

const Tensor& weights_of(const ParamStore::Unit& unit) { return unit.value ? unit.value : unit.master; }

}  // namespace

bool AveragedWeights::set_aside() const { return !params_.has_values() || params_.split(); }

void AveragedWeights::plan(MemoryPlan& plan) {
  const auto& states = params_.state_specs();
  const auto at = std::ranges::find_if(states, [](const StateSpec& s) {
    return s.name == kEmaState || s.name == kAverageMinusWeightState || s.name == kGlobalWeightState;
  });
  CHECK(at != states.end(), "no averages of the weights");
  state_ = size_t(at - states.begin());
  minus_weight_ = at->name == kAverageMinusWeightState;
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
      fn(Part{.unit = unit,
              .range = {begin, end},
              .state = averages.t.slice(at, at + size),
              .weights = unit.part(weights_of(unit), {begin, end}),
              .aside = aside_[u] ? aside_[u].slice(at, at + size) : Tensor{}});
    }
  }
}

// In f32, and rounded once.
void AveragedWeights::add_weights(Ctx& c, const Part& p) const {
  const Buffer sum = c.alloc("averaged weights", DType::f32, p.state.shape);
  const Tensor master = p.unit.part(p.unit.master, p.range);
  if (p.unit.is_split())
    c.run(JoinMaster{.master = sum.t, .param = p.weights, .rest = master});
  else
    c.run(Cast{.y = sum.t, .x = master});
  c.run(Add{.y = sum.t, .a = sum.t, .b = p.state});
  c.run(Cast{.y = p.weights, .x = sum.t});
}

void AveragedWeights::put_in(Ctx& c) {
  for_each([&](const Part& p) {
    if (p.aside) c.run(Cast{.y = p.aside, .x = p.weights});
    if (minus_weight_)
      add_weights(c, p);
    else
      c.run(Cast{.y = p.weights, .x = p.state});
  });
  params_.gather_weights(c);
}

void AveragedWeights::take_out(Ctx& c) {
  if (!set_aside()) return params_.refresh_values(c);
  for_each([&](const Part& p) { c.run(Cast{.y = p.weights, .x = p.aside}); });
  params_.gather_weights(c);
}

}  // namespace athanor
