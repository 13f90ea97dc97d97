// Lists of adjacent ranges for elementwise update rules.
#include <algorithm>

#include "base/rng.h"
#include "optim/rule.h"

namespace athanor {

std::vector<UpdateRun> joined(const std::vector<UpdateRange>& ranges) {
  std::vector<UpdateRun> runs;
  for (const UpdateRange& r : ranges) {
    const auto [begin, end] = r.range;
    // Within a run, decayed weights must come before weights without decay.
    const bool goes_on = !runs.empty() && runs.back().unit == r.unit && runs.back().end == begin &&
                         (!r.decays || runs.back().decayed == begin);
    if (!goes_on)
      runs.push_back({r.unit, begin, begin, begin, stream_of(cat("stochastic rounding of unit ", r.unit)),
                      stream_of(cat("stochastic rounding of the moments of unit ", r.unit))});
    runs.back().end = end;
    if (r.decays) runs.back().decayed = end;
  }
  return runs;
}

std::vector<OwnedRun> owned_runs(const ParamStore& params, const Placed& placed) {
  std::vector<OwnedRun> owned;
  for (const UpdateRun& run : placed.runs) {
    const ParamStore::Unit& unit = *params.units()[run.unit];
    const ParamStore::Range range = unit.owned(run.begin, run.end);
    if (range.begin < range.end) owned.push_back({unit, range, run});
  }
  return owned;
}

std::vector<UpdatePart> update_parts(const ParamStore& params, const Placed& placed, PartsOf of) {
  const auto has_state = [&](size_t i) {
    return of != PartsOf::weights && i < placed.states.size() && !params.has_sizes(placed.states[i]);
  };
  std::vector<UpdatePart> parts;
  for (const auto& [unit, range, run] : owned_runs(params, placed)) {
    UpdatePart part{.master = {},
                    .param = {},
                    .grad = unit.grads_on_device(range),
                    .decayed = std::clamp(run.decayed, range.begin, range.end) - range.begin,
                    .stream = run.stream,
                    .moment_stream = run.moment_stream,
                    .first = uint64_t(range.begin)};
    if (of != PartsOf::states) {
      part.master = unit.masters_on_device(range);
      if (unit.value) part.param = unit.values_on_device(range);
    }
    if (has_state(0)) part.m = unit.states[placed.states[0]].on_device(range);
    if (has_state(1)) part.v = unit.states[placed.states[1]].on_device(range);
    parts.push_back(part);
  }
  return parts;
}

void reduce_over_ranks(Ctx& c, const ParamStore& params, const std::string& subject, const Tensor& found, Reduce how) {
  if (!params.sharded()) return;
  if (c.update_sums) ++c.update_sums->calls, c.update_sums->bytes += int64_t(found.bytes());
  const CollectiveSubject named(subject);
  c.all_reduce(c.mesh.shards(), found, how);
}

void move_along(Ctx& c, const RuleOptions& o, const ParamStore& params, const Placed& placed, Tensor step_state) {
  const Sgd op{.parts = update_parts(params, placed, PartsOf::weights),
               .state = step_state,
               .weight_decay = o.weight_decay,
               .seed = o.seed,
               .rate = o.lr_factor,
               .direction = true,
               .cautious = o.cautious};
  if (!op.parts.empty()) c.run(op);
}

}  // namespace athanor
