#include "param/param_store.h"

#include <algorithm>

#include "base/rng.h"
#include "param/tree_reduce.h"

namespace athanor {
namespace {

constexpr int64_t kAlign = 64;  // elements: every parameter starts on a cache line, whatever its dtype

}  // namespace

Param ParamStore::declare(ParamSpec spec) {
  while (int(units_.size()) <= spec.unit) units_.push_back(std::make_unique<Unit>());
  const int id = int(specs_.size());
  units_[size_t(spec.unit)]->params.push_back(id);
  specs_.push_back(std::move(spec));
  offsets_.push_back(-1);
  return {id};
}

void ParamStore::freeze(std::string_view part) {
  bool found = false;
  for (ParamSpec& spec : specs_) {
    if (spec.name.find(part) == std::string::npos) continue;
    spec.trainable = false;
    found = true;
  }
  if (!found) throw Error(cat("freeze: no parameter's name contains \"", part, "\""));
}

ParamStore::Range ParamStore::Unit::owned(int64_t begin, int64_t end) const {
  const int64_t from = std::max(begin, shard.begin);
  return {from, std::max(from, std::min(end, shard.end))};
}

Tensor ParamStore::Unit::part(const Tensor& t, Range range) const {
  const int64_t first = is_shard(t) ? shard.begin : 0;
  return t.slice(range.begin - first, range.end - first);
}

void ParamStore::plan(MemoryPlan& plan, const Recipe& recipe, bool training, std::vector<StateSpec> states,
                      const Sharding& sharding) {
  states_ = training ? std::move(states) : std::vector<StateSpec>{};
  sharding_ = training ? sharding : Sharding{};
  if (sharding_.stage == 0 || sharding_.shards == 1) sharding_.stage = sharding_.index = 0, sharding_.shards = 1;
  const int stage = sharding_.stage;
  const LogicalShards& logical = sharding_.logical;
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = *units_[u];
    std::vector<ParamSpec> specs;
    for (int id : unit.params) specs.push_back(specs_[size_t(id)]);
    unit.layout = FlatLayout::make(specs, std::max(sharding_.shards, int(logical.count)), kAlign);
    for (size_t i = 0; i < unit.params.size(); ++i) offsets_[size_t(unit.params[i])] = unit.layout.offset[i];
    const int64_t share = unit.layout.numel / sharding_.shards;
    unit.shard = {share * sharding_.index, share * (sharding_.index + 1)};
    const bool separate = !training || recipe.separate_params();
    const auto add = [&](MemoryKind kind, const std::string& name, DType dtype, bool sharded, Tensor* t) {
      plan.add(kind, cat(name, " of unit ", u), dtype, {sharded ? share : unit.layout.numel}, t);
    };
    if (separate) add(MemoryKind::weights, "weights", recipe.compute, stage >= 3, &unit.value);
    if (!training) continue;
    // Masters that are the weights themselves are whole as long as these are.
    add(MemoryKind::masters, "masters", recipe.master, separate ? stage >= 1 : stage >= 3, &unit.master);
    add(MemoryKind::gradients, "gradients", DType::f32, stage >= 2 && logical.count == 0, &unit.grad);
    unit.joined.resize(size_t(logical.levels()));
    for (size_t level = 0; level < unit.joined.size(); ++level)
      add(MemoryKind::gradients, cat("joined gradients, level ", level), DType::f32, false, &unit.joined[level]);
    unit.states.resize(states_.size());
    for (size_t s = 0; s < states_.size(); ++s)
      add(MemoryKind::optimizer, states_[s].name, states_[s].dtype, stage >= 1, &unit.states[s]);
  }
}

void ParamStore::init(Ctx& c, uint64_t seed) {
  for (size_t id = 0; id < specs_.size(); ++id) {
    const ParamSpec& spec = specs_[id];
    const Unit& unit = *units_[size_t(spec.unit)];
    const Tensor& flat = unit.master ? unit.master : unit.value;
    for (const HfSlice& slice : spec.slices) {
      const int64_t begin = offsets_[id] + slice.offset, end = begin + slice.shape.numel();
      const Range range = unit.is_shard(flat) ? unit.owned(begin, end) : Range{begin, end};
      if (range.begin == range.end) continue;
      c.run(RandomNormal{.x = unit.part(flat, range),
                         .seed = seed,
                         .stream = stream_of(slice.name),
                         .first = uint64_t(range.begin - begin),
                         .mean = spec.init_mean,
                         .std = spec.init_std});
    }
  }
  refresh_values(c);
}

void ParamStore::refresh_values(Ctx& c) {
  for (const auto& unit : units_) {
    if (!unit->master || !unit->value) continue;
    if (unit->is_shard(unit->master))
      c.run(Cast{.y = unit->own(unit->value), .x = unit->master});
    else
      c.run(Cast{.y = unit->value, .x = unit->master});
  }
  gather_weights(c);
}

// Stages 1 and 2: every rank has all weights, of which it updated a shard.
void ParamStore::gather_weights(Ctx& c) {
  if (sharding_.stage != 1 && sharding_.stage != 2) return;
  for (const auto& unit : units_) {
    const Tensor& weights = unit->value ? unit->value : unit->master;
    c.all_gather(c.mesh[Axis::dp_shard], weights, unit->own(weights));
  }
}

void ParamStore::end_leaf(Ctx& c, int64_t leaf) {
  const int pairs = std::countr_one(uint64_t(leaf));  // that this leaf completes
  for (const auto& unit : units_) {
    const Tensor& grad = unit->grad;
    for (int level = 0; level < pairs; ++level) c.run(Add{.y = grad, .a = grad, .b = unit->joined[size_t(level)]});
    if (leaf + 1 == sharding_.logical.mine) continue;  // grad has the sum of all
    c.run(Cast{.y = unit->joined[size_t(pairs)], .x = grad});
    c.run(Fill{.x = grad});
  }
}

void ParamStore::reduce_gradients(Ctx& c) {
  Communicator &shards = c.mesh[Axis::dp_shard], &replicas = c.mesh[Axis::dp_replicate];
  const bool tree = sharding_.logical.count > 0;
  const auto all_reduce = [&](Communicator& group, const Tensor& x) {
    tree ? tree_all_reduce(c, group, x) : c.all_reduce(group, x);
  };
  for (const auto& unit : units_) {
    const Tensor& grad = unit->grad;
    if (sharding_.stage == 0) {
      all_reduce(c.mesh.data_parallel(), grad);
      continue;
    }
    if (!unit->is_shard(grad)) {  // the sum is for this rank's shard; what was added for others' is done with
      tree ? tree_reduce_scatter(c, shards, grad) : c.reduce_scatter(shards, unit->own(grad), grad);
      if (unit->shard.begin > 0) c.run(Fill{.x = grad.slice(0, unit->shard.begin)});
      if (unit->shard.end < unit->layout.numel) c.run(Fill{.x = grad.slice(unit->shard.end, unit->layout.numel)});
    }
    all_reduce(replicas, unit->own(grad));
  }
}

Buffer ParamStore::whole(Ctx& c, int unit, const Tensor& shard) {
  Buffer whole = c.alloc("whole tensor of a unit", shard.dtype, {units_[size_t(unit)]->layout.numel});
  c.all_gather(c.mesh[Axis::dp_shard], whole.t, shard);
  return whole;
}

Tensor ParamStore::view(const Tensor& flat, const ParamSpec& spec, int64_t offset) const {
  return {flat.at(offset), flat.dtype, spec.shape};
}

Tensor ParamStore::value(Param p) const {
  const ParamSpec& spec = specs_[size_t(p.id)];
  const Unit& unit = *units_[size_t(spec.unit)];
  const Tensor& weights = unit.gathered ? unit.gathered.t : unit.value ? unit.value : unit.master;
  CHECK(!unit.is_shard(weights), spec.name, " is read outside of use() and done() of its unit");
  return view(weights, spec, offsets_[size_t(p.id)]);
}

Tensor ParamStore::grad(Param p) const {
  const ParamSpec& spec = specs_[size_t(p.id)];
  const Unit& unit = *units_[size_t(spec.unit)];
  const Tensor& grad = unit.whole_grad ? unit.whole_grad.t : unit.grad;
  CHECK(!unit.is_shard(grad), spec.name, " gets a gradient outside of its unit's backward");
  return view(grad, spec, offsets_[size_t(p.id)]);
}

void ParamStore::gather(Ctx& c, int u) {
  Unit& unit = *units_.at(size_t(u));
  if (sharding_.stage < 3) return;
  CHECK(!unit.gathered, "unit ", u, " is in use already");
  const Tensor& shard = unit.value ? unit.value : unit.master;
  unit.gathered = c.alloc("weights of a unit", shard.dtype, {unit.layout.numel});
  c.all_gather(c.mesh[Axis::dp_shard], unit.gathered.t, shard);
}

void ParamStore::release(int u) {
  Unit& unit = *units_.at(size_t(u));
  unit.gathered = {};
}

void ParamStore::begin_gradients(Ctx& c, int u) {
  Unit& unit = *units_[size_t(u)];
  if (!unit.is_shard(unit.grad)) return;
  unit.whole_grad = c.alloc("gradients of a unit", DType::f32, {unit.layout.numel});
  c.run(Fill{.x = unit.whole_grad.t});
}

// Adds this micro-batch's share to what this rank keeps.
void ParamStore::end_gradients(Ctx& c, int u) {
  Unit& unit = *units_[size_t(u)];
  if (!unit.is_shard(unit.grad)) return;
  const Tensor mine = unit.own(unit.whole_grad.t);
  c.reduce_scatter(c.mesh[Axis::dp_shard], mine, unit.whole_grad.t);
  c.run(Add{.y = unit.grad, .a = unit.grad, .b = mine});
  unit.whole_grad = {};
}

void ParamStore::use(Ctx& c, int unit) {
  gather(c, unit);
  if (sharding_.stage < 2) return;
  c.record("use", [this, unit](Ctx& cc) {
    end_gradients(cc, unit);
    release(unit);
  });
}

void ParamStore::done(Ctx& c, int unit) {
  release(unit);
  if (sharding_.stage < 2) return;
  c.record("done", [this, unit](Ctx& cc) {
    gather(cc, unit);
    begin_gradients(cc, unit);
  });
}

void ParamStore::use_last(Ctx& c, int unit) {
  use(c, unit);
  if (c.recording()) begin_gradients(c, unit);
}

int64_t ParamStore::parameter_count() const {
  int64_t count = 0;
  for (const ParamSpec& spec : specs_)
    for (const HfSlice& slice : spec.slices) count += slice.shape.numel();
  return count;
}

std::vector<ParamStore::Piece> ParamStore::pieces() const {
  std::vector<Piece> all;
  for (size_t id = 0; id < specs_.size(); ++id)
    for (const HfSlice& slice : specs_[id].slices)
      all.push_back({&slice, specs_[id].unit, offsets_[id] + slice.offset});
  return all;
}

}  // namespace athanor
