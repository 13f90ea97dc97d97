// Selects the gradients that a rank adds to the gradient norm: each gradient counts on exactly one rank, however it is
// sharded or replicated.
#include <algorithm>

#include "param/param_store.h"

namespace athanor {

// A parameter and the padding after it count on the first of the ranks that have the same gradients.
std::vector<ParamStore::Range> ParamStore::counted(const ProcessMesh& mesh, const Unit& unit, Range of) const {
  std::vector<std::pair<int64_t, bool>> starts;  // offsets in the order of the layout, and whether they count here
  for (const int id : unit.params) {
    const Placement& p = placements_[size_t(id)];
    const bool first = mesh.is_first_except(p.cuts | p.shards | p.stages);
    if (p.repeats == 1 || p.repeated_from > 0) starts.emplace_back(offsets_[size_t(id)], first);
    if (p.repeats > 1)
      starts.emplace_back(offsets_[size_t(id)] + p.repeated_from, first && sharding_.tensor.rank % p.repeats == 0);
  }
  std::ranges::sort(starts);
  std::vector<Range> ranges;
  for (size_t i = 0; i < starts.size(); ++i) {
    if (!starts[i].second) continue;
    const Range range = unit.owned(std::max(starts[i].first, of.begin),
                                   std::min(i + 1 < starts.size() ? starts[i + 1].first : of.end, of.end));
    if (range.begin >= range.end) continue;
    if (!ranges.empty() && ranges.back().end == range.begin)
      ranges.back().end = range.end;
    else
      ranges.push_back(range);
  }
  return ranges;
}

}  // namespace athanor
