// Units whose weights and gradients are in pinned host memory while nobody computes with them. Weights are copied to
// the GPU ahead of their use, as shards of units are gathered (start_gather()). Gradients of a step's earlier
// micro-batches are copied there ahead of the unit's backward, which adds to them, and back behind it. Both have
// buffers for as long as the unit is in use. Updates have them stretch by stretch (param/state_stream.h).
#include <algorithm>

#include "param/param_store.h"

namespace athanor {

Tensor ParamStore::Unit::masters_on_device(Range range) const {
  if (masters_home == Mem::device) return part(master, range);
  const int64_t first = is_shard(master) ? shard.begin : 0;
  return masters_here.slice(range.begin - first, range.end - first);
}

// With another home, the unit is whole.
Tensor ParamStore::Unit::values_on_device(Range range) const {
  return home == Mem::device ? part(value, range) : values_here.slice(range.begin, range.end);
}

Tensor ParamStore::Unit::grads_on_device(Range range) const {
  return home == Mem::device ? part(grad, range) : grads_here.slice(range.begin, range.end);
}

int64_t ParamStore::movable_units() const {
  int64_t count = 0;
  for (size_t u = 0; u < units_.size(); ++u) count += here(u) && !specs_[size_t(units_[u]->params.at(0))].buffer;
  return count;
}

// Evenly spread over the model, so that copies hide behind units that stay on the GPU.
std::vector<size_t> ParamStore::units_to_move() const {
  const int64_t all = movable_units(), moved = std::min(all, sharding_.host_units);
  std::vector<size_t> units;
  int64_t number = 0;
  for (size_t u = 0; u < units_.size() && moved > 0; ++u) {
    if (!here(u) || units_[u]->buffers) continue;
    if ((number + 1) * moved / all > number * moved / all) units.push_back(u);
    ++number;
  }
  return units;
}

void ParamStore::begin_micro_batch(bool first, bool last) {
  last_micro_batch_ = last;
  for (const auto& unit : units_) unit->has_gradient = !first;
}

void ParamStore::start_bringing(Ctx& c, Unit& unit) {
  const Tensor& home = unit.weights();
  unit.gathered = c.alloc("weights of a unit", home.dtype, {home.numel()});
  if (c.unit_traffic) c.unit_traffic->forward.bytes += int64_t(home.bytes());
  unit.gathering = c.beside(
      [&](Stream stream) { c.device.copy(unit.gathered.t.data, home.data, home.bytes(), stream); }, Stream::copy);
}

// Of a unit that nobody has prefetched.
void ParamStore::count_waited(const Ctx& c, int u) const {
  if (!c.unit_traffic) return;
  for (int each = u; each >= 0; each = units_[size_t(each)]->beside) {
    const Unit& unit = *units_[size_t(each)];
    if (unit.home != Mem::device && !unit.gathered) c.unit_traffic->forward.waited += int64_t(unit.weights().bytes());
  }
}

// Prefetches gradients, of units in host memory alone; no-op if the unit does not exist.
void ParamStore::start_gradients(Ctx& c, int u) {
  if (!has_host_units()) return;
  for (int each = u; each >= 0; each = units_[size_t(each)]->beside)
    if (Unit& unit = *units_[size_t(each)]; !unit.frozen && unit.home != Mem::device)
      start_gradients_of(c, unit, false);
}

void ParamStore::start_gradients_of(Ctx& c, Unit& unit, bool waits) {
  if (unit.whole_grad) return;
  if (reducing_.unit == &unit) settle(c);  // where a table is the head's weight, too
  unit.whole_grad = c.alloc("gradients of a unit", unit.grad.dtype, {unit.layout.numel});
  const Tensor &to = unit.whole_grad.t, &home = unit.grad;
  if (c.unit_traffic) {
    c.unit_traffic->gradients.bytes += int64_t(home.bytes());
    if (waits) c.unit_traffic->gradients.waited += int64_t(home.bytes());
  }
  if (!unit.has_gradient) return c.run(Fill{.x = to});
  unit.grad_comes =
      c.beside([&](Stream stream) { c.device.copy(to.data, home.data, home.bytes(), stream); }, Stream::copy);
}

// The norm is that of the gradients so far: the last micro-batch leaves the step's.
void ParamStore::send_gradients(Ctx& c, Unit& unit) {
  settle(c);
  c.run(Fill{.x = unit.norm});
  if (unit.layout.trained > 0)
    c.run(SquaredNorm{.out = unit.norm, .x = {unit.whole_grad.t.slice(0, unit.layout.trained)}});
  reducing_ = {&unit, std::move(unit.whole_grad), {}, nullptr};
  unit.whole_grad = {};
  unit.has_gradient = true;
  const Tensor &from = reducing_.whole.t, &home = unit.grad;
  if (c.unit_traffic) c.unit_traffic->gradients_out += int64_t(home.bytes());
  reducing_.ticket =
      c.beside([&](Stream stream) { c.device.copy(home.data, from.data, home.bytes(), stream); }, Stream::copy_back);
}

}  // namespace athanor
