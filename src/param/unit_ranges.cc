// Ranges of a unit's elements as views of its buffers: at home, and in device memory.
#include <algorithm>

#include "param/param_store.h"

namespace athanor {

ParamStore::Range ParamStore::Unit::owned(int64_t begin, int64_t end) const {
  const int64_t from = std::max(begin, shard.begin);
  return {from, std::max(from, std::min(end, shard.end))};
}

Tensor ParamStore::Unit::part(const Tensor& t, Range range) const {
  const int64_t first = is_shard(t) ? shard.begin : 0;
  return t.slice(range.begin - first, range.end - first);
}

int64_t ParamStore::State::first_of(size_t piece) const {
  for (const auto& [number, first] : firsts)
    if (number == piece) return first;
  CHECK(false, "no optimizer state of piece ", piece);
  return 0;
}

ParamStore::Range ParamStore::State::stored(Range range) const {
  for (const Segment& segment : segments)
    if (segment.begin <= range.begin && range.end <= segment.end)
      return {(segment.at + range.begin - segment.begin) / block, (segment.at + range.end - segment.begin) / block};
  CHECK(false, "no optimizer state of elements ", range.begin, " to ", range.end);
  return {};
}

std::vector<ParamStore::Range> ParamStore::State::within(Range range) const {
  std::vector<Range> all;
  for (const Segment& s : segments)
    if (const Range r{std::max(s.begin, range.begin), std::min(s.end, range.end)}; r.begin < r.end) all.push_back(r);
  return all;
}

Tensor ParamStore::State::part(Range range) const {
  const Range at = stored(range);
  return t.slice(at.begin, at.end);
}

Tensor ParamStore::State::on_device(Range range) const {
  const Range at = stored(range);
  return home == Mem::device ? t.slice(at.begin, at.end) : here.slice(at.begin, at.end);
}

Tensor ParamStore::Unit::masters_on_device(Range range) const {
  if (masters_home == Mem::device) return part(master, range);
  const int64_t first = is_shard(master) ? shard.begin : 0;
  return masters_here.slice(range.begin - first, range.end - first);
}

Tensor ParamStore::Unit::values_on_device(Range range) const {
  if (home == Mem::device) return part(value, range);
  const int64_t first = is_shard(value) ? shard.begin : 0;
  return values_here.slice(range.begin - first, range.end - first);
}

Tensor ParamStore::Unit::grads_on_device(Range range) const {
  if (home == Mem::device) return part(grad, range);
  const int64_t first = is_shard(grad) ? shard.begin : 0;
  return grads_here.slice(range.begin - first, range.end - first);
}

}  // namespace athanor
