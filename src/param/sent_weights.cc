// Weights that are sent to other ranks in 4 bits (PackedTraffic::weights). After an update the owner of a shard sends
// the difference between its new weights and kSentWeightState, the weights with which all ranks compute. No other error
// feedback is needed: what one step rounds away is part of the next step's difference, so the sum of the rounded
// differences follows the weights. The optimizer's master weights are exact.
#include <algorithm>

#include "ops/packed_groups.h"
#include "param/param_store.h"

namespace athanor {

// Buffers are whole on each rank and are not sent.
StateSpec ParamStore::sent_weight_state(DType compute) const {
  StateSpec state{.name = kSentWeightState, .dtype = compute};
  for (const Piece& piece : pieces()) {
    const ParamSpec& spec = specs_[size_t(piece.param)];
    state.pieces.push_back(!spec.frozen && !spec.buffer);
  }
  if (std::ranges::count(state.pieces, false) == 0) state.pieces.clear();
  return state;
}

// Calls fn(unit, its kSentWeightState) for each unit with trained weights.
void ParamStore::for_each_sent(const auto& fn) {
  const auto at = std::ranges::find(states_, kSentWeightState, &StateSpec::name);
  CHECK(at != states_.end(), "no state for sent weights");
  for (const auto& unit : units_) {
    if (unit->layout.numel == 0 || unit->frozen) continue;
    const Tensor& sent = unit->states[size_t(at - states_.begin())].t;
    CHECK(has_values_ && !split_ && sent.numel() == unit->own(unit->value).numel(), unit->name,
          " has no weights apart from its masters");
    fn(*unit, sent);
  }
}

void ParamStore::start_sent_weights(Ctx& c) {
  cast_masters(c);
  for_each_sent([&](const Unit& unit, const Tensor& sent) { c.run(Cast{.y = sent, .x = unit.own(unit.value)}); });
  gather_weights(c);
}

void ParamStore::take_sent_weights(Ctx& c) {
  for_each_sent([&](const Unit& unit, const Tensor& sent) { c.run(Cast{.y = unit.own(unit.value), .x = sent}); });
}

void ParamStore::send_weights(Ctx& c) {
  if (!sharding_.packed.weights) return gather_weights(c);
  for_each_sent([&](const Unit& unit, const Tensor& sent) {
    const CollectiveSubject subject(unit.name);
    const Tensor own = unit.own(unit.value);
    if (unit.shards > 1) {
      Communicator& ranks = shards_of(c.mesh, unit);
      const int64_t bytes = packed_bytes(DType::f4_e2m1, own.numel());
      const Buffer all = c.alloc("packed weights", DType::u8, {unit.shards * bytes});
      const Tensor mine = all.t.slice(ranks.rank() * bytes, (ranks.rank() + 1) * bytes);
      c.run(PackGroups{.groups = mine, .x = own, .minus = sent});
      c.run(Cast{.y = own, .x = sent});
      c.all_gather(ranks, all.t, mine);
      c.run(SumGroups{.y = unit.value, .groups = all.t, .accumulates = true});
    }
    c.run(Cast{.y = sent, .x = own});
  });
}

}  // namespace athanor
