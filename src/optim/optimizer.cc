#include "optim/optimizer.h"

#include <algorithm>

#include "base/error.h"

namespace athanor {
namespace {

// In the order of RuleName.
constexpr std::unique_ptr<UpdateRule> (*kRules[])(const RuleOptions&) = {make_adamw, make_adamw, make_sgd, make_lion,
                                                                         make_muon};
static_assert(std::size(kRules) == std::size(kRuleNames));

template <class T, class Same>
size_t find_or_add(std::vector<T>& list, T value, const Same& same) {
  const auto at = std::find_if(list.begin(), list.end(), same);
  const auto index = size_t(at - list.begin());
  if (at == list.end()) list.push_back(std::move(value));
  return index;
}

}  // namespace

// Groups whose options differ only in weight decay share a bundle, and one launch.
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

void Optimizer::place(Bundle& bundle, size_t pieces) {
  bundle.rule = kRules[size_t(bundle.options.rule)](bundle.options);
  for (const KeptState& state : bundle.rule->states()) {
    const size_t at = find_or_add(states_, StateSpec{std::string(state.name), state.dtype, std::vector<bool>(pieces)},
                                  [&](const StateSpec& s) { return s.name == state.name; });
    CHECK(states_[at].dtype == state.dtype, "state ", state.name, " of ", state.dtype, " and ", states_[at].dtype);
    for (const auto& [piece, decays] : bundle.pieces) states_[at].pieces[piece] = true;
    bundle.placed.states.push_back(at);
  }
  const std::vector<double> averages = bundle.rule->averages();
  for (size_t i = 0; i < averages.size(); ++i) {
    size_t at = 0;  // a momentum gets its own entry: the schedule may change it
    while (at < averages_.size() && (averages_[at] != averages[i] || ((momenta_ >> at & 1) != 0) != (i == 0))) ++at;
    if (at == averages_.size()) averages_.push_back(averages[i]);
    if (i == 0) momenta_ |= 1u << (at % 32);
    bundle.placed.averages.push_back(int(at));
  }
}

Optimizer::Optimizer(const OptimizerOptions& options, ParamStore& params) {
  const std::vector<int> groups = assign_groups(options, params);
  const auto pieces = params.pieces();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!params.specs()[size_t(pieces[i].param)].trainable) continue;
    const RuleOptions rule = rule_options(options, groups[i]);
    bundle_of(rule).pieces.emplace_back(i, rule.weight_decay > 0);
  }
  for (Bundle& bundle : bundles_) place(bundle, pieces.size());
  if (averages_.size() > size_t(kMostAverages))
    throw Error(cat("param_groups: ", averages_.size(), " different betas, expected at most ", kMostAverages,
                    "; let groups share some"),
                Exit::usage);
  for (StateSpec& state : states_)
    if (std::ranges::count(state.pieces, false) == 0) state.pieces.clear();
}

bool Optimizer::exchanges(const ParamStore& params, size_t unit) const {
  const auto pieces = params.pieces();
  return std::ranges::any_of(bundles_, [&](const Bundle& bundle) {
    return bundle.rule->exchanges() && std::ranges::any_of(bundle.pieces, [&](const auto& piece) {
             return size_t(pieces[piece.first].unit) == unit;
           });
  });
}

void Optimizer::step(Ctx& c, ParamStore& params, Tensor step_state) {
  const auto pieces = params.pieces();
  const std::vector<ParamStore::Range> extents = params.extents();
  for (Bundle& bundle : bundles_) {
    std::vector<UpdateRange> ranges;
    for (const auto& [piece, decays] : bundle.pieces) {
      const auto unit = size_t(pieces[piece].unit);
      const int64_t end = std::min(extents[piece].end, params.units()[unit]->layout.trained);
      ranges.push_back({piece, unit, {extents[piece].begin, end}, decays});
    }
    std::ranges::sort(ranges, {}, [](const UpdateRange& r) { return std::pair(r.unit, r.range.begin); });
    bundle.rule->step(c, params, ranges, bundle.placed, step_state);
  }
}

}  // namespace athanor
