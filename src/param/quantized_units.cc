// Units whose matrices are all-gathered quantized: one byte per element, which the caller writes for this rank's shard;
// other parameters are gathered unquantized. This file does not depend on the format of the bytes.
#include <algorithm>

#include "base/int.h"
#include "param/param_store.h"

namespace athanor {

// Finds the elements that are not quantized. Returns whether gathering the unit quantized is worthwhile: each rank
// holds those elements whole, so they must be few.
bool ParamStore::lay_out_quantized(Unit& unit) const {
  constexpr int64_t kFewest = 8;  // at most one in 8 elements is not quantized
  std::vector<int> ids = unit.params;
  std::ranges::sort(ids, {}, [&](int id) { return offsets_[size_t(id)]; });
  unit.others_at.clear();
  int64_t size = 0;
  for (const int id : ids) {
    if (specs_[size_t(id)].gathered_quantized) continue;
    const int64_t begin = offsets_[size_t(id)];
    const int64_t end = round_up(begin + placements_[size_t(id)].shape.numel(), kAlign);
    unit.others_at.push_back({begin, end, size});
    size += end - begin;
  }
  const bool any = unit.others_at.size() < ids.size();
  return any && size * kFewest <= unit.layout.numel;
}

int64_t ParamStore::Unit::others_before(int64_t element) const {
  int64_t count = 0;
  for (const State::Segment& s : others_at) count += std::clamp<int64_t>(element - s.begin, 0, s.end - s.begin);
  return count;
}

void ParamStore::gather_quantized(Ctx& c) {
  for (const auto& unit : units_) {
    if (!unit->quantized || unit->is_shard(unit->quantized)) continue;
    const CollectiveSubject subject(unit->name);
    c.all_gather(c.mesh.shards(), unit->quantized, unit->own(unit->quantized));
  }
}

// Gathers in the order of elements, so that each rank contributes one contiguous range; ranges differ in size.
void ParamStore::gather_others(Ctx& c, const Unit& unit) {
  if (!unit.others) return;
  const int64_t share = unit.layout.numel / sharding_.shards;
  for (const State::Segment& s : unit.others_at) {
    const Range own = unit.owned(s.begin, s.end);
    if (own.begin == own.end) continue;
    const Shape lines{(own.end - own.begin) / kAlign, kAlign};
    const Tensor& to = unit.others;
    c.run(Combine{.y = {to.at(s.at + own.begin - s.begin), to.dtype, lines},
                  .a = {unit.part(unit.weights(), own).data, to.dtype, lines}});
  }
  const auto of_rank = [&](int rank) {
    const int64_t begin = unit.others_before(rank * share), end = unit.others_before((rank + 1) * share);
    return begin < end ? unit.others.slice(begin, end) : Tensor{};
  };
  std::vector<Tensor> out(size_t(sharding_.shards)), in(out.size());
  for (int rank = 0; rank < sharding_.shards; ++rank) {
    if (rank == sharding_.index) continue;
    out[size_t(rank)] = of_rank(sharding_.index), in[size_t(rank)] = of_rank(rank);
  }
  if (!c.arena.recording()) c.mesh.shards().all_to_all(out, in, Stream::compute);
}

Tensor ParamStore::quantized(Param p) const {
  const ParamSpec& spec = specs_[size_t(p.id)];
  const Unit& unit = *units_[size_t(spec.unit)];
  const Tensor& quantized = unit.gathered ? unit.gathered.t : unit.quantized;
  CHECK(!unit.is_shard(quantized), "quantized values of ", spec.name,
        " are read outside of use() and done() of its unit");
  return view(quantized, p);
}

ParamStore::Range ParamStore::owned_lines(Param p) const {
  const int64_t begin = offsets_[size_t(p.id)];
  return units_[size_t(spec(p).unit)]->owned(begin, round_up(begin + placements_[size_t(p.id)].shape.numel(), kAlign));
}

}  // namespace athanor
