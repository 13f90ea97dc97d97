// Ranges of a unit's elements as views of its buffers, in their home memory and in device memory.
#include <algorithm>

#include "param/param_store.h"

namespace athanor {
namespace {

// Returns a view of a range of the unit's elements in device memory: in `t` if its home is there, else in `here`.
Tensor on_device(const ParamStore::Unit& unit, const Tensor& t, Mem home, const ParamStore::Brought& here,
                 ParamStore::Range range) {
  const int64_t first = unit.is_shard(t) ? unit.shard.begin : 0;
  const auto of = [&](const auto& buffer) { return buffer.slice(range.begin - first, range.end - first); };
  return home == Mem::device ? of(t) : of(here);
}

}  // namespace

ParamStore::Range ParamStore::Unit::owned(int64_t begin, int64_t end) const {
  const int64_t from = std::max(begin, shard.begin);
  return {from, std::max(from, std::min(end, shard.end))};
}

Tensor ParamStore::Unit::part(const Tensor& t, Range range) const {
  return on_device(*this, t, Mem::device, {}, range);
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
  return on_device(*this, master, masters_home, masters_here, range);
}

Tensor ParamStore::Unit::values_on_device(Range range) const {
  return on_device(*this, value, home, values_here, range);
}

Tensor ParamStore::Unit::grads_on_device(Range range) const { return on_device(*this, grad, home, grads_here, range); }

}  // namespace athanor
