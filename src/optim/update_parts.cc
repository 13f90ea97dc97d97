// Lists of adjacent ranges for elementwise update rules.
#include <algorithm>

#include "base/rng.h"
#include "optim/rule.h"

namespace athanor {
namespace {

struct Run {  // adjacent elements of a unit; those before `decayed` decay
  size_t unit;
  int64_t begin, end, decayed;
};

// Extends a run while the next range is adjacent, unless weights that decay would follow weights that do not.
std::vector<Run> joined(std::span<const UpdateRange> ranges) {
  std::vector<Run> runs;
  for (const UpdateRange& r : ranges) {
    const auto [begin, end] = r.range;
    const bool goes_on = !runs.empty() && runs.back().unit == r.unit && runs.back().end == begin &&
                         (!r.decays || runs.back().decayed == begin);
    if (!goes_on) runs.push_back({r.unit, begin, begin, begin});
    runs.back().end = end;
    if (r.decays) runs.back().decayed = end;
  }
  return runs;
}

}  // namespace

std::vector<UpdatePart> update_parts(const ParamStore& params, std::span<const UpdateRange> ranges,
                                     const Placed& placed) {
  std::vector<UpdatePart> parts;
  for (const Run& run : joined(ranges)) {
    const ParamStore::Unit& unit = *params.units()[run.unit];
    const ParamStore::Range range = unit.owned(run.begin, run.end);
    if (range.begin == range.end) continue;
    UpdatePart part{.master = unit.part(unit.master, range),
                    .param = unit.value ? unit.part(unit.value, range) : Tensor{},
                    .grad = unit.part(unit.grad, range),
                    .decayed = std::clamp(run.decayed, range.begin, range.end) - range.begin,
                    .stream = stream_of(cat("stochastic rounding of unit ", run.unit)),
                    .moment_stream = stream_of(cat("stochastic rounding of the moments of unit ", run.unit)),
                    .first = uint64_t(range.begin)};
    if (!placed.states.empty()) part.m = unit.states[placed.states[0]].part(range);
    if (placed.states.size() > 1) part.v = unit.states[placed.states[1]].part(range);
    parts.push_back(part);
  }
  return parts;
}

}  // namespace athanor
