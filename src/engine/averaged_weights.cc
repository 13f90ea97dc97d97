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

// Reads the master weights, too, if the state is the average minus the weight.
void AveragedWeights::put_in_averages(Ctx& c) const {
  std::vector<StateStretch> all = weights_and({.masters = minus_weight_, .states = {state_}});
  stream_states(c, params_, all, [&](const StateStretch& s) {
    const ParamStore::Unit& unit = *params_.units()[s.unit];
    for (const ParamStore::Range& range : unit.states[state_].within(s.range)) {
      const Part p = part(s.unit, range);
      if (p.aside) c.run(Cast{.y = p.aside, .x = p.weights});
      const Tensor average = unit.states[state_].on_device(range);
      if (minus_weight_)
        add_weights(c, p, average);
      else
        c.run(Cast{.y = p.weights, .x = average});
    }
  });
}

// Returns stretches that write only the weights.
std::vector<StateStretch> AveragedWeights::weights_and(StatesUsed used) const {
  used.values = true;
  used.masters = used.masters || !params_.has_values();
  std::vector<StateStretch> all = state_stretches(params_, used);
  for (StateStretch& s : all) s.writes_masters = !params_.has_values(), s.writes_states = false;
  return all;
}

AveragedWeights::Part AveragedWeights::part(size_t u, ParamStore::Range range) const {
  const ParamStore::Unit& unit = *params_.units()[u];
  const ParamStore::Range at = unit.states[state_].stored(range);
  return {.unit = unit,
          .range = range,
          .weights = unit.value ? unit.values_on_device(range) : unit.masters_on_device(range),
          .aside = aside_[u] ? aside_[u].slice(at.begin, at.end) : Tensor{}};
}

// Adds in f32 and rounds once.
void AveragedWeights::add_weights(Ctx& c, const Part& p, const Tensor& average) {
  const Buffer sum = c.alloc("averaged weights", DType::f32, average.shape);
  const Tensor master = p.unit.masters_on_device(p.range);
  if (p.unit.is_split())
    c.run(JoinMaster{.master = sum.t, .param = p.weights, .rest = master});
  else
    c.run(Cast{.y = sum.t, .x = master});
  c.run(Add{.y = sum.t, .a = sum.t, .b = average});
  c.run(Cast{.y = p.weights, .x = sum.t});
}

void AveragedWeights::put_in(Ctx& c) {
  put_in_averages(c);
  params_.gather_weights(c);
}

void AveragedWeights::take_out(Ctx& c) {
  if (!set_aside()) return params_.refresh_values(c);
  stream_states(c, params_, weights_and({}), [&](const StateStretch& s) {
    for (const ParamStore::Range& range : params_.units()[s.unit]->states[state_].within(s.range)) {
      const Part p = part(s.unit, range);
      c.run(Cast{.y = p.weights, .x = p.aside});
    }
  });
  params_.gather_weights(c);
}

}  // namespace athanor
