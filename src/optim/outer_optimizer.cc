#include "optim/outer_optimizer.h"

#include <algorithm>

#include "ops/packed_groups.h"
#include "ops/update.h"
#include "param/state_stream.h"

namespace athanor {

OuterOptimizer::OuterOptimizer(const OuterOptions& options, ParamStore& params, bool overlaps)
    : options_(options),
      params_(params),
      overlaps_(overlaps),
      in_flight_(size_t(options.fragments)),
      sent_(in_flight_.size()) {
  CHECK(options_.steps > 0 && options_.fragments > 0 && options_.fragments <= options_.steps, options_.fragments,
        " fragments in rounds of ", options_.steps, " steps");
  CHECK(options_.delay >= 0 && options_.delay < options_.steps && options_.mixing >= 0 && options_.mixing < 1,
        "a delay of ", options_.delay, " steps in rounds of ", options_.steps, ", mixing ", options_.mixing);
}

// Waits for background collectives, which use the states' memory.
OuterOptimizer::~OuterOptimizer() {
  for (const Sent& sent : sent_) {
    try {
      if (sent.background) sent.background->finish_calls(sent.calls);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the run has failed already
    }
  }
}

std::vector<StateSpec> OuterOptimizer::states() const {
  std::vector<bool> trained;
  for (const auto& piece : params_.pieces()) trained.push_back(params_.specs()[size_t(piece.param)].trainable);
  if (std::ranges::count(trained, false) == 0) trained.clear();
  std::vector<StateSpec> states;
  const auto add = [&](const char* name) {
    states.push_back({.name = name, .dtype = DType::f32, .pieces = trained, .of_all_workers = true});
  };
  add(kGlobalWeightState);
  if (options_.momentum > 0) add(kOuterMomentumState);
  if (options_.delay > 0) add(kOuterDeltaState);
  return states;
}

void OuterOptimizer::plan(MemoryPlan& plan) {
  const auto& states = params_.state_specs();
  const auto at = std::ranges::find(states, kGlobalWeightState, &StateSpec::name);
  CHECK(at != states.end(), "no state for the global weights");
  first_state_ = size_t(at - states.begin());
  plan.add(MemoryKind::inputs, "rates of outer steps", DType::u8, {int64_t(sizeof(StepState))}, &rates_);
  packed_.resize(params_.units().size());
  if (!overlaps_ || options_.deltas != DeltaDtype::fp4) return;
  for (size_t u = 0; u < packed_.size(); ++u) {
    const ParamStore::Unit& unit = *params_.units()[u];
    int64_t bytes = 0;
    for (const ParamStore::Range& r : unit.states[first_state_].within({0, unit.layout.numel}))
      bytes += params_.worker().workers * packed_bytes(DType::f4_e2m1, r.end - r.begin);
    if (bytes > 0) plan.add(MemoryKind::optimizer, cat("deltas of workers, unit ", u), DType::u8, {bytes}, &packed_[u]);
  }
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
  return step > 0 && step % options_.steps == last % options_.steps;
}

template <class Fn>
void OuterOptimizer::for_each(Ctx& c, int64_t fragment, const Used& use, const Fn& fn) const {
  StatesUsed used{.masters = true, .states = {first_state_}, .whole_units = true};
  const bool momentum = use.momentum && options_.momentum > 0, delta = use.delta && options_.delay > 0;
  if (momentum) used.states.push_back(momentum_state());
  if (delta) used.states.push_back(delta_state());
  std::vector<StateStretch> all = state_stretches(params_, used);
  if (fragment >= 0)
    std::erase_if(all, [&](const StateStretch& s) { return int64_t(s.unit) % options_.fragments != fragment; });
  for (StateStretch& s : all) s.writes_masters = use.writes_masters;
  stream_states(c, params_, all, [&](const StateStretch& s) {
    const ParamStore::Unit& unit = *params_.units()[s.unit];
    const ParamStore::State& theta = unit.states[first_state_];
    int64_t at = 0;  // offset in bytes of the part's deltas among the unit's
    for (const ParamStore::Range& range : theta.within(s.range)) {
      const int64_t bytes = params_.worker().workers * packed_bytes(DType::f4_e2m1, range.end - range.begin);
      fn(Part{.unit = unit,
              .range = range,
              .theta = theta.on_device(range),
              .momentum = momentum ? unit.states[momentum_state()].on_device(range) : Tensor{},
              .delta = delta ? unit.states[delta_state()].on_device(range) : Tensor{},
              .packed = packed_[s.unit] ? packed_[s.unit].slice(at, at + bytes) : Tensor{}});
      at += bytes;
    }
  });
}

void OuterOptimizer::read_weights(Ctx& c, const Part& p, const Tensor& to) {
  if (p.unit.is_split())
    c.run(JoinMaster{.master = to, .param = p.unit.part(p.unit.value, p.range), .rest = p.master()});
  else
    c.run(Cast{.y = to, .x = p.master()});
}

void OuterOptimizer::start(Ctx& c) {
  for_each(c, -1, {}, [&](const Part& p) { read_weights(c, p, p.theta); });
}

void OuterOptimizer::sum_packed(Ctx& c, const Tensor& delta, const Tensor& packed) const {
  c.run(SumGroups{.y = delta, .groups = packed, .count = params_.worker().workers});
}

// Sets `delta` to the sum of the workers' deltas, immediately or in receive().
void OuterOptimizer::send(Ctx& c, const Part& p, const Tensor& delta, Sent& sent) const {
  read_weights(c, p, delta);
  const Shape row{1, delta.numel()};
  c.run(Combine{.y = delta.view(row), .a = p.theta.view(row), .b = delta.view(row), .alpha = 1, .beta = -1});
  const CollectiveSubject subject(p.unit.name);
  Communicator& workers = options_.delay > 0 ? c.mesh.deltas() : c.mesh.workers();
  const auto run = [&](const auto& collective) {
    if (overlaps_)
      sent.tickets.push_back(c.overlap(collective, Stream::workers));
    else if (!c.arena.recording())
      collective(Stream::compute);
    sent.background = &workers, sent.calls = workers.calls();
    if (!overlaps_) sent.wait(c);
  };
  if (options_.deltas == DeltaDtype::fp32) return run([&](Stream on) { workers.all_reduce(delta, Reduce::sum, on); });
  const int64_t bytes = packed_bytes(DType::f4_e2m1, delta.numel());
  const Buffer here = p.packed ? Buffer{} : c.alloc("deltas of workers", DType::u8, {params_.worker().workers * bytes});
  const Tensor all = p.packed ? p.packed : here.t;
  const Tensor own = all.slice(workers.rank() * bytes, (workers.rank() + 1) * bytes);
  c.run(PackGroups{.groups = own, .x = delta});
  run([&](Stream on) { workers.all_gather(all, own, on); });
  if (!overlaps_) sum_packed(c, delta, all);
}

void OuterOptimizer::Sent::wait(Ctx& c) {
  for (Ctx::Ticket& ticket : tickets) c.wait(std::move(ticket));
  if (background) background->finish_calls(calls);
  *this = {};
}

void OuterOptimizer::receive(Ctx& c, int64_t fragment) {
  Sent& sent = sent_[size_t(fragment)];
  const bool packed = !sent.tickets.empty() && options_.deltas == DeltaDtype::fp4;
  sent.wait(c);
  if (packed) for_each(c, fragment, {.delta = true}, [&](const Part& p) { sum_packed(c, p.delta, p.packed); });
}

void OuterOptimizer::receive(Ctx& c) {
  for (int64_t fragment = 0; fragment < options_.fragments; ++fragment) receive(c, fragment);
}

void OuterOptimizer::update(Ctx& c, const Part& p, const Tensor& delta) const {
  const Buffer own = options_.mixing > 0 ? c.alloc("weights of the worker", DType::f32, p.theta.shape) : Buffer{};
  if (own) read_weights(c, p, own.t);
  c.run(Sgd{.parts = {{.master = p.theta, .m = p.momentum, .grad = delta}},
            .state = rates_,
            .momentum = options_.momentum,
            .nesterov = true});
  const Tensor weights = own ? own.t : p.theta;
  const Shape row{1, weights.numel()};
  if (own)
    c.run(Combine{.y = own.t.view(row),
                  .a = own.t.view(row),
                  .b = p.theta.view(row),
                  .alpha = float(options_.mixing),
                  .beta = float(1 - options_.mixing)});
  const Tensor value = p.unit.value ? p.unit.part(p.unit.value, p.range) : Tensor{};
  // Rounds the weights by settled() (tensor/half.h), so that f32 and split master weights hold the same values. Without
  // mixing this also rounds the global weights.
  if (value && value.dtype == DType::bf16)
    c.run(SplitMaster{.param = value, .rest = p.unit.is_split() ? p.master() : Tensor{}, .master = weights});
  if (!p.unit.is_split()) c.run(Cast{.y = p.master(), .x = weights});
}

void OuterOptimizer::end_round(Ctx& c, int64_t fragment) {
  Sent& sent = sent_[size_t(fragment)];
  if (options_.delay > 0) {
    for_each(c, fragment, {.delta = true}, [&](const Part& p) { send(c, p, p.delta, sent); });
    in_flight_[size_t(fragment)] = true;
    return;
  }
  for_each(c, fragment, {.momentum = true, .writes_masters = true}, [&](const Part& p) {
    const Buffer delta = c.alloc("outer gradients", DType::f32, p.theta.shape);
    send(c, p, delta.t, sent);
    update(c, p, delta.t);
  });
  params_.refresh_values(c);
}

void OuterOptimizer::outer_step(Ctx& c, int64_t fragment) {
  receive(c, fragment);
  for_each(c, fragment, {.momentum = true, .delta = true, .writes_masters = true},
           [&](const Part& p) { update(c, p, p.delta); });
  params_.refresh_values(c);
  in_flight_[size_t(fragment)] = false;
}

std::vector<int64_t> OuterOptimizer::in_flight() const {
  std::vector<int64_t> all;
  for (int64_t fragment = 0; fragment < options_.fragments; ++fragment)
    if (is_in_flight(fragment)) all.push_back(fragment);
  return all;
}

void OuterOptimizer::set_in_flight(const std::vector<int64_t>& fragments) {
  in_flight_.assign(in_flight_.size(), false);
  for (const int64_t fragment : fragments) in_flight_[size_t(fragment)] = true;
}

}  // namespace athanor
