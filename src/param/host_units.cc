// Units whose weights and gradients are in pinned host memory while they are not in use. Weights are prefetched to the
// GPU like all-gathers of sharded units (start_gather()). Gradients of a step's earlier micro-batches are copied to the
// GPU before the unit's backward, which adds to them, and back to the host after it. Weights and gradients have device
// buffers only while the unit is in use. Updates copy them stretch by stretch (param/state_stream.h).
#include <algorithm>

#include "param/param_store.h"

namespace athanor {

int64_t ParamStore::movable_units() const {
  int64_t count = 0;
  for (size_t u = 0; u < units_.size(); ++u) count += here(u) && !specs_[size_t(units_[u]->params.at(0))].buffer;
  return count;
}

// Spreads the moved units evenly over the model, so that the compute of units that stay on the GPU hides the copies.
// The last and then the first unit are moved only after all others: a pass begins with them, so nothing hides their
// copies.
std::vector<size_t> ParamStore::units_to_move() const {
  std::vector<size_t> all;
  for (size_t u = 0; u < units_.size(); ++u)
    if (here(u) && !units_[u]->buffers) all.push_back(u);
  const auto count = int64_t(all.size()), moved = std::min(count, sharding_.host_units);
  const int64_t inner = std::max<int64_t>(0, count - 2), of_inner = std::min(moved, inner);
  std::vector<size_t> units;
  for (int64_t i = 0; i < inner; ++i)
    if ((i + 1) * of_inner / inner > i * of_inner / inner) units.push_back(all[size_t(i + 1)]);
  if (moved > inner) units.push_back(all.back());
  if (moved > inner + 1) units.push_back(all.front());
  return units;
}

void ParamStore::begin_micro_batch(bool first, bool last) {
  last_micro_batch_ = last;
  for (const auto& unit : units_) unit->has_gradient = !first;
}

// At stage 3 copies this rank's shard, then all-gathers.
void ParamStore::start_bringing(Ctx& c, Unit& unit) {
  const Tensor& home = unit.weights();
  unit.gathered = c.alloc("weights of a unit", home.dtype, {unit.layout.numel});
  if (c.unit_traffic) c.unit_traffic->forward.bytes += int64_t(home.bytes());
  const Tensor own = sharded() ? unit.own(unit.gathered.t) : unit.gathered.t;
  unit.gathering = c.overlap([&](Stream stream) { c.device.copy(own.data, home.data, home.bytes(), stream); },
                             sharded() ? Stream::comm : Stream::copy);
  if (!sharded()) return;
  const CollectiveSubject subject(unit.name);
  unit.gathering = c.overlap([&](Stream stream) { c.mesh.shards().all_gather(unit.gathered.t, own, stream); });
}

// Counts the weight bytes of a unit that was not prefetched: compute waits for their copy.
void ParamStore::count_waited(const Ctx& c, int u) const {
  if (!c.unit_traffic) return;
  for (int each = u; each >= 0; each = units_[size_t(each)]->next_together) {
    const Unit& unit = *units_[size_t(each)];
    if (unit.home != Mem::device && !unit.gathered) c.unit_traffic->forward.waited += int64_t(unit.weights().bytes());
  }
}

// Prefetches gradients of units in host memory; no-op if the unit does not exist.
void ParamStore::start_gradients(Ctx& c, int u) {
  if (!has_host_units() || sharded()) return;  // sharded: the gradients to add to are sums over ranks
  for (int each = u; each >= 0; each = units_[size_t(each)]->next_together)
    if (Unit& unit = *units_[size_t(each)]; !unit.frozen && unit.home != Mem::device)
      start_gradients_of(c, unit, false);
}

void ParamStore::start_gradients_of(Ctx& c, Unit& unit, bool waits) {
  if (unit.whole_grad) return;
  if (sending_.unit == &unit) wait_for_sent(c);  // happens if the embedding is tied to the LM head
  unit.whole_grad = c.alloc("gradients of a unit", unit.grad.dtype, {unit.layout.numel});
  unit.grad_comes = bring_gradients(c, unit, unit.whole_grad.t, waits);
}

Ctx::Ticket ParamStore::bring_gradients(Ctx& c, const Unit& unit, const Tensor& to, bool waits) const {
  const Tensor& home = unit.grad;
  if (c.unit_traffic) {
    c.unit_traffic->gradients.bytes += int64_t(home.bytes());
    if (waits) c.unit_traffic->gradients.waited += int64_t(home.bytes());
  }
  if (unit.has_gradient)
    return c.overlap([&](Stream s) { c.device.copy(to.data, home.data, home.bytes(), s); }, Stream::copy);
  c.run(Fill{.x = to});
  return nullptr;
}

// Also computes the squared norm of the gradients so far, which is the step's norm after the last micro-batch.
void ParamStore::send_gradients(Ctx& c, Unit& unit, Buffer grad, Range of) {
  wait_for_sent(c);
  c.run(Fill{.x = unit.norm});
  const std::vector<Range> counted = this->counted(c.mesh, unit, {of.begin, std::min(of.end, unit.layout.trained)});
  for (const Range& r : counted)
    c.run(SquaredNorm{.out = unit.norm, .x = {grad.t.slice(r.begin - of.begin, r.end - of.begin)}});
  CHECK(counted.size() <= 1, unit.name, " counts ", counted.size(),
        " ranges of gradients, and they are summed in order");
  unit.has_gradient = true;
  sending_ = {&unit, std::move(grad), nullptr};
  const Tensor &from = sending_.grad.t, &home = unit.grad;
  if (c.unit_traffic) c.unit_traffic->gradients_out += int64_t(home.bytes());
  sending_.ticket =
      c.overlap([&](Stream stream) { c.device.copy(home.data, from.data, home.bytes(), stream); }, Stream::copy_back);
}

void ParamStore::wait_for_sent(Ctx& c) {
  if (!sending_.unit) return;
  c.wait(std::move(sending_.ticket));
  sending_ = {};
}

}  // namespace athanor
