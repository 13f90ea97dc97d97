#include "optim/optimizer.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace athanor {
namespace {

// Indexed by RuleName.
constexpr std::unique_ptr<UpdateRule> (*kRules[])(const RuleOptions&) = {
    make_adamw,      make_adamw,        make_sgd,
    make_lion,       make_muon,         make_muon,
    make_adamw_8bit, make_lamb,         make_schedule_free_adamw,
    make_adafactor,  make_one_bit_adam, make_one_bit_lamb};
static_assert(std::size(kRules) == std::size(kRuleNames));

template <class T, class Same>
size_t find_or_add(std::vector<T>& list, T value, const Same& same) {
  const auto at = std::find_if(list.begin(), list.end(), same);
  const auto index = size_t(at - list.begin());
  if (at == list.end()) list.push_back(std::move(value));
  return index;
}

}  // namespace

// Groups whose options differ only in weight decay share a bundle and are updated by one op.
Optimizer::Bundle& Optimizer::bundle_of(const RuleOptions& options) {
  for (Bundle& bundle : bundles_) {
    RuleOptions& have = bundle.options;
    const double decay = std::max(have.weight_decay, options.weight_decay);
    if (have.weight_decay != options.weight_decay && have.weight_decay != 0 && options.weight_decay != 0) continue;
    RuleOptions a = have, b = options;
    a.weight_decay = b.weight_decay = decay;
    if (a != b) continue;
    have.weight_decay = decay;
    return bundle;
  }
  return bundles_.emplace_back(Bundle{.options = options});
}

void Optimizer::place(Bundle& bundle, const ParamStore& params) {
  const size_t pieces = params.pieces().size();
  for (const KeptState& state : bundle.rule->states()) {
    const size_t at = find_or_add(states_, StateSpec{std::string(state.name), state.dtype, std::vector<bool>(pieces)},
                                  [&](const StateSpec& s) { return s.name == state.name; });
    CHECK(states_[at].dtype == state.dtype, "state ", state.name, " of ", state.dtype, " and ", states_[at].dtype);
    if (state.sizes) states_[at].sizes = state.sizes(params);
    states_[at].block = state.block, states_[at].aligned = state.aligned;
    states_[at].of_all_workers = state.of_all_workers;
    for (const auto& [piece, decays] : bundle.pieces) states_[at].pieces[piece] = true;
    bundle.placed.states.push_back(at);
  }
  for (const Average& average : bundle.rule->averages())
    bundle.placed.averages.push_back(
        int(find_or_add(averages_, average, [&](const Average& a) { return a == average; })));
}

Optimizer::Bundle Optimizer::average_of_all(const Average& average) const {
  Bundle all{.options = {}, .rule = make_average(average)};
  for (const Bundle& bundle : bundles_)
    for (const auto& [piece, decays] : bundle.pieces) all.pieces.emplace_back(piece, false);
  return all;
}

// Weights and bias of a layer must be scaled together: both must be trained, or both frozen.
Optimizer::Bundle Optimizer::clip_of_scores(const OptimizerOptions& options, const ParamStore& params) {
  Bundle all{.options = {}, .rule = make_qk_clip(options.qk_clip_threshold, options.seed)};
  const auto pieces = params.pieces();
  const ParamSpec *trained = nullptr, *frozen = nullptr;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const ParamSpec& spec = params.specs()[size_t(pieces[i].param)];
    if (spec.attention < 0) continue;
    (spec.trainable ? trained : frozen) = &spec;
    if (trained && frozen && trained->attention == frozen->attention)
      throw Error(cat("qk_clip_threshold: ", frozen->name, " is frozen and ", trained->name,
                      " is not; both make queries and keys, so train or freeze both"),
                  Exit::usage);
    if (spec.trainable) all.pieces.emplace_back(i, false);
  }
  if (all.pieces.empty())
    throw Error(
        "qk_clip_threshold: scales queries and keys, which are all frozen; expected 0, or some that are trained",
        Exit::usage);
  return all;
}

Optimizer::Optimizer(const OptimizerOptions& options, ParamStore& params) {
  const std::vector<int> groups = assign_groups(options, params);
  const auto pieces = params.pieces();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const ParamSpec& spec = params.specs()[size_t(pieces[i].param)];
    if (!spec.trainable) continue;
    const RuleOptions rule = rule_of(options, groups[i], spec, *pieces[i].slice);
    bundle_of(rule).pieces.emplace_back(i, rule.weight_decay > 0);
  }
  for (Bundle& bundle : bundles_) {
    bundle.rule = kRules[size_t(bundle.options.rule)](bundle.options);
    if (!::athanor::compresses(bundle.options.rule)) continue;
    const bool lamb = bundle.options.rule == RuleName::onebit_lamb;
    bundle.warm_up = lamb ? make_lamb(bundle.options) : make_adamw(bundle.options);
  }
  CHECK(options.ema_decay == 0 || options.tail_average_start == 0, "two averages of the weights");
  std::vector<Bundle> last;
  if (options.qk_clip_threshold > 0) last.push_back(clip_of_scores(options, params));
  if (options.ema_decay > 0) last.push_back(average_of_all({options.ema_decay}));
  if (options.tail_average_start > 0)
    last.push_back(average_of_all({.weighting = Weighting::equal, .start = options.tail_average_start}));
  std::ranges::move(last, std::back_inserter(bundles_));
  for (Bundle& bundle : bundles_) place(bundle, params);
  if (averages_.size() > size_t(kMostAverages))
    throw Error(cat("param_groups: ", averages_.size(), " different betas",
                    options.ema_decay > 0            ? " and averaging.ema_decay"
                    : options.tail_average_start > 0 ? " and averaging.tail_start"
                                                     : "",
                    ", expected at most ", kMostAverages, "; let groups share some"),
                Exit::usage);
  for (StateSpec& state : states_)
    if (std::ranges::count(state.pieces, false) == 0) state.pieces.clear();
}

// The ranges are the same in every step.
void Optimizer::find_ranges(const ParamStore& params) {
  const auto pieces = params.pieces();
  const std::vector<ParamStore::Range> extents = params.extents();
  for (Bundle& bundle : bundles_) {
    std::vector<UpdateRange>& ranges = bundle.placed.ranges;
    for (const auto& [piece, decays] : bundle.pieces) {
      const auto unit = size_t(pieces[piece].unit);
      if (!params.here(unit)) continue;
      const int64_t end = std::min(extents[piece].end, params.units()[unit]->layout.trained);
      ranges.push_back({piece, unit, {extents[piece].begin, end}, decays});
    }
    std::ranges::sort(ranges, {}, [](const UpdateRange& r) { return std::tuple(r.unit, r.range.begin, r.piece); });
    bundle.placed.runs = joined(ranges);
    bundle.placed.all_ranges = ranges.size();
  }
  if (params.states_home().mem != Mem::device || params.has_host_units()) find_sweeps(params);
  ranges_known_ = true;
}

// The last pass of each rule updates only its own weights, and averages of the weights are updated afterwards. All
// these passes share one sweep, so that master weights are copied to the device only once.
void Optimizer::find_sweeps(const ParamStore& params) {
  std::vector<std::pair<size_t, size_t>> last;
  for (size_t b = 0; b < bundles_.size(); ++b) {
    if (bundles_[b].placed.ranges.empty()) continue;
    const std::vector<UpdatePass> passes = bundles_[b].rule->passes();
    for (size_t p = 0; p + 1 < passes.size(); ++p) sweeps_.push_back(sweep_of(params, {{b, p}}));
    last.emplace_back(b, passes.size() - 1);
  }
  sweeps_.push_back(sweep_of(params, last));
}

namespace {

// Returns the part of a rule's ranges within a stretch. Elements keep their offsets in the unit, and therefore their
// random bits.
Placed within(const Placed& all, const StateStretch& stretch) {
  Placed placed{.states = all.states, .averages = all.averages, .all_ranges = all.all_ranges};
  for (size_t i = 0; i < all.ranges.size(); ++i) {
    UpdateRange r = all.ranges[i];
    if (r.unit != stretch.unit) continue;
    r.range = {std::max(r.range.begin, stretch.range.begin), std::min(r.range.end, stretch.range.end)};
    if (r.range.begin >= r.range.end) continue;
    if (placed.ranges.empty()) placed.first_range = i;
    placed.ranges.push_back(r);
  }
  placed.runs = joined(placed.ranges);
  return placed;
}

void add_used(StateStretch& stretch, const ParamStore& params, const Placed& placed, const UpdatePass& pass) {
  using Use = UpdatePass::Use;
  const ParamStore::Unit& unit = *params.units()[stretch.unit];
  if (pass.of == UpdatePass::Of::whole_units) {  // includes elements between the weights of the rule
    if (pass.masters != Use::no) stretch.masters = stretch.values = {stretch.range};
    stretch.grads = {stretch.range};
    if (pass.states != Use::no)
      for (const size_t s : placed.states)
        for (const auto& range : unit.states[s].within(stretch.range)) stretch.states.push_back({s, range});
  } else {
    for (const UpdateRun& run : placed.runs) {
      const ParamStore::Range own = unit.owned(run.begin, run.end);
      if (own.begin >= own.end) continue;
      stretch.grads.push_back(own);
      if (pass.masters != Use::no) stretch.masters.push_back(own), stretch.values.push_back(own);
      if (pass.states == Use::no) continue;
      for (const size_t s : placed.states)
        if (!params.has_sizes(s)) stretch.states.push_back({s, own});
    }
  }
  stretch.writes_masters = stretch.writes_masters || pass.masters == Use::writes;
  stretch.writes_values = stretch.writes_masters;
  stretch.writes_states = stretch.writes_states || pass.states == Use::writes;
}

}  // namespace

Optimizer::Sweep Optimizer::sweep_of(const ParamStore& params,
                                     const std::vector<std::pair<size_t, size_t>>& passes) const {
  Sweep sweep;
  StatesUsed used{.values = true, .grads = true};
  const auto pass_of = [&](size_t i) { return bundles_[passes[i].first].rule->passes()[passes[i].second]; };
  if (passes.size() == 1 && pass_of(0).of == UpdatePass::Of::everything) {
    const Bundle& bundle = bundles_[passes[0].first];
    sweep.parts = {{{passes[0].first, passes[0].second, bundle.placed}}};
    return sweep;
  }
  for (size_t i = 0; i < passes.size(); ++i) {
    const UpdatePass pass = pass_of(i);
    used.masters = used.masters || pass.masters != UpdatePass::Use::no;
    used.whole_units = used.whole_units || pass.of == UpdatePass::Of::whole_units;
    if (pass.states != UpdatePass::Use::no)
      std::ranges::copy(bundles_[passes[i].first].placed.states, std::back_inserter(used.states));
  }
  for (StateStretch stretch : state_stretches(params, used)) {
    stretch.masters.clear(), stretch.values.clear(), stretch.grads.clear(), stretch.states.clear();
    stretch.writes_masters = stretch.writes_values = stretch.writes_states = false;
    std::vector<Sweep::Part> parts;
    for (size_t i = 0; i < passes.size(); ++i) {
      Placed placed = within(bundles_[passes[i].first].placed, stretch);
      if (placed.ranges.empty()) continue;
      add_used(stretch, params, placed, pass_of(i));
      parts.push_back({passes[i].first, passes[i].second, std::move(placed)});
    }
    if (parts.empty()) continue;
    sweep.stretches.push_back(std::move(stretch));
    sweep.parts.push_back(std::move(parts));
  }
  return sweep;
}

void Optimizer::run_sweep(Ctx& c, ParamStore& params, const Sweep& sweep, Tensor step_state) {
  const auto run = [&](const std::vector<Sweep::Part>& parts) {
    for (const Sweep::Part& part : parts)
      bundles_[part.bundle].rule->run(part.pass, c, params, part.placed, step_state);
  };
  size_t next = 0;
  if (sweep.stretches.empty()) std::ranges::for_each(sweep.parts, run);
  stream_states(c, params, sweep.stretches, [&](const StateStretch&) { run(sweep.parts[next++]); });
}

bool Optimizer::whole_gradients() const {
  return std::ranges::any_of(bundles_, [](const Bundle& b) { return b.rule->passes().size() > 1; });
}

void Optimizer::step(Ctx& c, ParamStore& params, Tensor step_state, bool compressed) {
  if (!ranges_known_) find_ranges(params);
  for (const Sweep& sweep : sweeps_) run_sweep(c, params, sweep, step_state);
  if (!sweeps_.empty()) return;
  for (Bundle& bundle : bundles_) {
    if (bundle.placed.ranges.empty()) continue;
    UpdateRule& rule = bundle.warm_up && !compressed ? *bundle.warm_up : *bundle.rule;
    for (size_t pass = 0; pass < rule.passes().size(); ++pass) rule.run(pass, c, params, bundle.placed, step_state);
  }
}

}  // namespace athanor
