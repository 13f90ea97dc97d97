#include "optim/outer_optimizer.h"

#include <algorithm>

#include "ops/update.h"
#include "param/state_stream.h"

namespace athanor {

OuterOptimizer::OuterOptimizer(const OuterOptions& options, ParamStore& params) : options_(options), params_(params) {
  CHECK(options_.steps > 0 && options_.fragments > 0 && options_.fragments <= options_.steps, options_.fragments,
        " fragments in rounds of ", options_.steps, " steps");
}

std::vector<StateSpec> OuterOptimizer::states() const {
  std::vector<bool> trained;
  for (const auto& piece : params_.pieces()) trained.push_back(params_.specs()[size_t(piece.param)].trainable);
  if (std::ranges::count(trained, false) == 0) trained.clear();
  std::vector<StateSpec> states{
      {.name = kGlobalWeightState, .dtype = DType::f32, .pieces = trained, .of_all_workers = true}};
  if (options_.momentum > 0)
    states.push_back({.name = kOuterMomentumState, .dtype = DType::f32, .pieces = trained, .of_all_workers = true});
  return states;
}

void OuterOptimizer::plan(MemoryPlan& plan) {
  const auto& states = params_.state_specs();
  const auto at = std::ranges::find(states, kGlobalWeightState, &StateSpec::name);
  CHECK(at != states.end(), "no state for the global weights");
  first_state_ = size_t(at - states.begin());
  plan.add(MemoryKind::inputs, "rates of outer steps", DType::u8, {int64_t(sizeof(StepState))}, &rates_);
}

void OuterOptimizer::commit(Device& device) const {
  StepState rates;
  rates.lr = float(options_.learning_rate);
  rates.grad_scale = 1 / float(params_.worker().workers);
  device.copy(rates_.data, &rates, sizeof rates, Stream::compute);
  device.sync();
}

bool OuterOptimizer::round_ends(int64_t fragment, int64_t step) const {
  const int64_t last = (fragment + 1) * options_.steps / options_.fragments;  // end of the first round, in [1, steps]
  return step % options_.steps == last % options_.steps;
}

template <class Fn>
void OuterOptimizer::for_each(Ctx& c, int64_t fragment, bool writes_masters, const Fn& fn) const {
  StatesUsed used{.masters = true, .states = {first_state_}, .whole_units = true};
  if (options_.momentum > 0) used.states.push_back(first_state_ + 1);
  std::vector<StateStretch> all = state_stretches(params_, used);
  if (fragment >= 0)
    std::erase_if(all, [&](const StateStretch& s) { return int64_t(s.unit) % options_.fragments != fragment; });
  for (StateStretch& s : all) s.writes_masters = writes_masters;
  stream_states(c, params_, all, [&](const StateStretch& s) {
    const ParamStore::Unit& unit = *params_.units()[s.unit];
    const ParamStore::State& theta = unit.states[first_state_];
    for (const ParamStore::Range& range : theta.within(s.range))
      fn(Part{.unit = unit,
              .range = range,
              .theta = theta.on_device(range),
              .momentum = options_.momentum > 0 ? unit.states[first_state_ + 1].on_device(range) : Tensor{}});
  });
}

void OuterOptimizer::read_weights(Ctx& c, const Part& p, const Tensor& to) {
  if (p.unit.is_split())
    c.run(JoinMaster{.master = to, .param = p.unit.part(p.unit.value, p.range), .rest = p.master()});
  else
    c.run(Cast{.y = to, .x = p.master()});
}

void OuterOptimizer::start(Ctx& c) {
  for_each(c, -1, false, [&](const Part& p) { read_weights(c, p, p.theta); });
}

void OuterOptimizer::update(Ctx& c, const Part& p) const {
  const Buffer moved = c.alloc("outer gradients", DType::f32, p.theta.shape);
  read_weights(c, p, moved.t);
  const Shape row{1, p.theta.numel()};
  c.run(Combine{.y = moved.t.view(row), .a = p.theta.view(row), .b = moved.t.view(row), .alpha = 1, .beta = -1});
  {
    const CollectiveSubject subject(p.unit.name);
    c.all_reduce(c.mesh.workers(), moved.t);
  }
  c.run(Sgd{.parts = {{.master = p.theta, .m = p.momentum, .grad = moved.t}},
            .state = rates_,
            .momentum = options_.momentum,
            .nesterov = true});
  const Tensor value = p.unit.value ? p.unit.part(p.unit.value, p.range) : Tensor{};
  // Rounds the global weights by settled() (tensor/half.h), so that f32 and split masters hold the same values.
  if (value && value.dtype == DType::bf16)
    c.run(SplitMaster{.param = value, .rest = p.unit.is_split() ? p.master() : Tensor{}, .master = p.theta});
  if (!p.unit.is_split()) c.run(Cast{.y = p.master(), .x = p.theta});
}

void OuterOptimizer::end_round(Ctx& c, int64_t fragment) {
  for_each(c, fragment, true, [&](const Part& p) { update(c, p); });
  params_.refresh_values(c);
}

}  // namespace athanor
