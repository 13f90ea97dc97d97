#include "param/param_store.h"

#include <algorithm>
#include <numeric>

#include "base/int.h"
#include "base/rng.h"
#include "param/tree_reduce.h"

namespace athanor {
namespace {

constexpr int64_t kInitChunk = int64_t{1} << 24;  // elements of split masters that exist in f32 while they get values

// What the names of a unit's parameters begin with, up to a dot.
std::string common_name(const std::vector<ParamSpec>& specs) {
  std::string name = specs.at(0).name;
  for (const ParamSpec& spec : specs)
    name.resize(
        size_t(std::mismatch(name.begin(), name.end(), spec.name.begin(), spec.name.end()).first - name.begin()));
  name.resize(std::min(name.size(), name.rfind('.')));
  return name.empty() ? specs[0].name : name;
}

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
  for (const auto& unit : units_) lay_out(*unit);
  const std::vector<std::vector<OwnPiece>> pieces = training ? pieces_by_unit() : std::vector<std::vector<OwnPiece>>{};
  const int stage = sharding_.stage;
  const LogicalShards& logical = sharding_.logical;
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = *units_[u];
    const bool separate = !training || recipe.separate_params();
    const auto add = [&](MemoryKind kind, const std::string& name, DType dtype, bool sharded, Tensor* t) {
      plan.add(kind, cat(name, " of unit ", u), dtype,
               {sharded ? unit.layout.numel / sharding_.shards : unit.layout.numel}, t);
    };
    if (separate) add(MemoryKind::weights, "weights", recipe.compute, stage >= 3, &unit.value);
    if (!training) continue;
    // Masters that are the weights themselves are whole as long as these are.
    add(MemoryKind::masters, "masters", recipe.master, separate ? stage >= 1 : stage >= 3, &unit.master);
    add(MemoryKind::gradients, "gradients", DType::f32, stage >= 2 && logical.count == 0, &unit.grad);
    unit.joined.resize(size_t(logical.levels()));
    for (size_t level = 0; level < unit.joined.size(); ++level)
      add(MemoryKind::gradients, cat("joined gradients, level ", level), DType::f32, false, &unit.joined[level]);
    plan_states(plan, u, pieces[u]);
  }
}

// Name, places of the parameters and the part that this rank updates.
void ParamStore::lay_out(Unit& unit) {
  std::vector<ParamSpec> specs;
  for (int id : unit.params) specs.push_back(specs_[size_t(id)]);
  unit.name = common_name(specs);
  unit.layout = FlatLayout::make(specs, std::max(sharding_.shards, int(sharding_.logical.count)), kAlign);
  for (size_t i = 0; i < unit.params.size(); ++i) offsets_[size_t(unit.params[i])] = unit.layout.offset[i];
  const int64_t share = unit.layout.numel / sharding_.shards;
  unit.shard = {share * sharding_.index, share * (sharding_.index + 1)};
}

std::vector<std::vector<ParamStore::OwnPiece>> ParamStore::pieces_by_unit() const {
  const std::vector<Piece> all = pieces();
  const std::vector<Range> extent = extents();
  std::vector<std::vector<OwnPiece>> by_unit(units_.size());
  for (size_t i = 0; i < all.size(); ++i) by_unit[size_t(all[i].unit)].push_back({i, extent[i]});
  return by_unit;
}

// Each segment starts on a cache line, as parameters do.
void ParamStore::plan_states(MemoryPlan& plan, size_t u, const std::vector<OwnPiece>& pieces) {
  Unit& unit = *units_[u];
  unit.states.resize(states_.size());
  const Range held = sharding_.stage >= 1 ? unit.shard : Range{0, unit.layout.numel};
  for (size_t s = 0; s < states_.size(); ++s) {
    if (has_sizes(s)) {
      plan_sizes(plan, u, s, pieces);
      continue;
    }
    State& state = unit.states[s];
    std::vector<Range> ranges;
    for (const OwnPiece& piece : pieces) {
      if (!keeps(s, piece.number)) continue;
      state.of_any = true;
      const Range range{std::max(piece.extent.begin, held.begin), std::min(piece.extent.end, held.end)};
      if (range.begin < range.end) ranges.push_back(range);
    }
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    int64_t size = 0;
    for (const Range& range : ranges) {
      if (!state.segments.empty() && state.segments.back().end == range.begin) {
        state.segments.back().end = range.end;
      } else {
        size = round_up(size, kAlign);
        state.segments.push_back({range.begin, range.end, size});
      }
      size += range.end - range.begin;
    }
    state.everything = size == held.end - held.begin;
    if (size == 0) continue;
    plan.add(MemoryKind::optimizer, cat(states_[s].name, " of unit ", u), states_[s].dtype, {size}, &state.t);
  }
}

void ParamStore::plan_sizes(MemoryPlan& plan, size_t u, size_t s, const std::vector<OwnPiece>& pieces) {
  State& state = units_[u]->states[s];
  int64_t size = 0;
  for (const OwnPiece& piece : pieces) {
    if (!keeps(s, piece.number)) continue;
    state.of_any = true;
    state.firsts.emplace_back(piece.number, size);
    size += round_up(states_[s].sizes[piece.number], kAlign);
  }
  if (size > 0)
    plan.add(MemoryKind::optimizer, cat(states_[s].name, " of unit ", u), states_[s].dtype, {size}, &state.t);
}

int64_t ParamStore::State::first_of(size_t piece) const {
  for (const auto& [number, first] : firsts)
    if (number == piece) return first;
  CHECK(false, "no optimizer state of piece ", piece);
  return 0;
}

Tensor ParamStore::State::part(Range range) const {
  for (const Segment& segment : segments)
    if (segment.begin <= range.begin && range.end <= segment.end)
      return t.slice(segment.at + range.begin - segment.begin, segment.at + range.end - segment.begin);
  CHECK(false, "no optimizer state of elements ", range.begin, " to ", range.end);
  return {};
}

bool ParamStore::keeps(size_t state, size_t piece) const {
  return states_[state].pieces.empty() || states_[state].pieces[piece];
}

bool ParamStore::keeps_everything() const {
  for (const auto& unit : units_)
    for (const State& state : unit->states)
      if (!state.everything) return false;
  return true;
}

std::vector<ParamStore::Range> ParamStore::extents() const {
  const std::vector<Piece> all = pieces();
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(all[a].unit, all[a].offset) < std::pair(all[b].unit, all[b].offset);
  });
  std::vector<Range> ranges(all.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const Piece& piece = all[order[i]];
    const bool first = i == 0 || all[order[i - 1]].unit != piece.unit;
    const bool last = i + 1 == order.size() || all[order[i + 1]].unit != piece.unit;
    ranges[order[i]] = {first ? 0 : piece.offset,
                        last ? units_[size_t(piece.unit)]->layout.numel : all[order[i + 1]].offset};
  }
  return ranges;
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
      RandomNormal values{.seed = seed,
                          .stream = stream_of(slice.name),
                          .first = uint64_t(range.begin - begin),
                          .mean = spec.init_mean,
                          .std = spec.init_std};
      if (unit.is_split()) {
        init_split(c, unit, range, values);
        continue;
      }
      values.x = unit.part(flat, range);
      c.run(values);
    }
  }
  refresh_values(c);
}

void ParamStore::init_split(Ctx& c, const Unit& unit, Range range, RandomNormal values) {
  for (; range.begin < range.end; range.begin += kInitChunk) {
    const Range chunk{range.begin, std::min(range.begin + kInitChunk, range.end)};
    const Buffer masters = c.alloc("initial masters", DType::f32, {chunk.end - chunk.begin});
    values.x = masters.t;
    c.run(values);
    c.run(
        SplitMaster{.param = unit.part(unit.value, chunk), .rest = unit.part(unit.master, chunk), .master = masters.t});
    values.first += uint64_t(kInitChunk);
  }
}

void ParamStore::refresh_values(Ctx& c) {
  for (const auto& unit : units_) {
    if (!unit->master || !unit->value || unit->is_split()) continue;
    const Tensor value = unit->is_shard(unit->master) ? unit->own(unit->value) : unit->value;
    if (value.dtype == DType::bf16)
      c.run(SplitMaster{.param = value, .master = unit->master});
    else
      c.run(Cast{.y = value, .x = unit->master});
  }
  gather_weights(c);
}

// Stages 1 and 2: every rank has all weights, of which it updated a shard.
void ParamStore::gather_weights(Ctx& c) {
  if (sharding_.stage != 1 && sharding_.stage != 2) return;
  for (const auto& unit : units_) {
    const CollectiveSubject subject(unit->name);
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

void ParamStore::reduce_in_tree(Ctx& c, const Unit& unit) {
  if (sharding_.stage == 0) return tree_all_reduce(c, c.mesh.data_parallel(), unit.grad);
  tree_reduce_scatter(c, c.mesh[Axis::dp_shard], unit.grad);
  tree_all_reduce(c, c.mesh[Axis::dp_replicate], unit.own(unit.grad));
}

void ParamStore::reduce_gradients(Ctx& c) {
  for (const auto& unit : units_) {
    const CollectiveSubject subject(unit->name);
    const Tensor& grad = unit->grad;
    if (sharding_.logical.count > 0)
      reduce_in_tree(c, *unit);
    else if (sharding_.stage >= 2)  // below, they were summed early
      c.all_reduce(c.mesh[Axis::dp_replicate], grad);
    if (sharding_.stage == 0 || unit->is_shard(grad)) continue;
    // The sum is for this rank's shard; what was added for others' is done with.
    if (unit->shard.begin > 0) c.run(Fill{.x = grad.slice(0, unit->shard.begin)});
    if (unit->shard.end < unit->layout.numel) c.run(Fill{.x = grad.slice(unit->shard.end, unit->layout.numel)});
  }
}

Buffer ParamStore::whole(Ctx& c, int unit, const Tensor& shard) {
  const CollectiveSubject subject(units_[size_t(unit)]->name);
  Buffer whole = c.alloc("whole tensor of a unit", shard.dtype, {units_[size_t(unit)]->layout.numel});
  c.all_gather(c.mesh[Axis::dp_shard], whole.t, shard);
  return whole;
}

Buffer ParamStore::whole_state(Ctx& c, int u, size_t s) {
  const Unit& unit = *units_[size_t(u)];
  const State& state = unit.states[s];
  const Range held = sharding_.stage >= 1 ? unit.shard : Range{0, unit.layout.numel};
  const Buffer spread = c.alloc("a state in its places", states_[s].dtype, {held.end - held.begin});
  c.run(Fill{.x = spread.t});
  for (const State::Segment& segment : state.segments)
    c.run(Cast{.y = spread.t.slice(segment.begin - held.begin, segment.end - held.begin),
               .x = state.part({segment.begin, segment.end})});
  return sharding_.stage >= 1 ? whole(c, u, spread.t) : spread;
}

Buffer ParamStore::whole_master(Ctx& c, int u) {
  const Unit& unit = *units_[size_t(u)];
  const bool shard = unit.is_shard(unit.master);
  Buffer joined = c.alloc("joined masters", DType::f32, unit.master.shape);
  c.run(JoinMaster{.master = joined.t, .param = shard ? unit.own(unit.value) : unit.value, .rest = unit.master});
  return shard ? whole(c, u, joined.t) : joined;
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

// Beside what compute does; nothing if it was started before, or there is no such unit.
void ParamStore::start_gather(Ctx& c, int u) {
  if (sharding_.stage < 3 || u < 0 || u >= int(units_.size()) || units_[size_t(u)]->gathered) return;
  Unit& unit = *units_[size_t(u)];
  const CollectiveSubject subject(unit.name);
  const Tensor& shard = unit.value ? unit.value : unit.master;
  unit.gathered = c.alloc("weights of a unit", shard.dtype, {unit.layout.numel});
  unit.gathering = c.beside([&](Lane lane) { c.mesh[Axis::dp_shard].all_gather(unit.gathered.t, shard, lane); });
}

void ParamStore::gather(Ctx& c, int u) {
  start_gather(c, u);
  c.wait(std::move(units_.at(size_t(u))->gathering));
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

// This micro-batch's share of what this rank keeps goes on its way; it is added when the next unit's has started.
void ParamStore::end_gradients(Ctx& c, int u) {
  Unit& unit = *units_[size_t(u)];
  const CollectiveSubject subject(unit.name);
  if (--unit.uses == 0 && last_micro_batch_) reduce_early(c, unit);
  if (!unit.is_shard(unit.grad)) return;
  settle(c);
  reducing_ = {&unit, std::move(unit.whole_grad), nullptr};
  unit.whole_grad = {};
  const Tensor whole = reducing_.whole.t, mine = unit.own(whole);
  reducing_.ticket =
      c.beside([&](Lane lane) { c.mesh[Axis::dp_shard].reduce_scatter(mine, whole, Reduce::sum, lane); });
}

void ParamStore::settle(Ctx& c) {
  if (!reducing_.unit) return;
  c.wait(std::move(reducing_.ticket));
  const Unit& unit = *std::exchange(reducing_.unit, nullptr);
  c.run(Add{.y = unit.grad, .a = unit.grad, .b = unit.own(reducing_.whole.t)});
  reducing_.whole = {};
}

bool ParamStore::reduces_early(const ProcessMesh& mesh) const {
  return sharding_.stage < 2 && sharding_.logical.count == 0 && mesh.data_parallel().size() > 1;
}

// Whole gradients that no later micro-batch of the step adds to.
void ParamStore::reduce_early(Ctx& c, const Unit& unit) {
  if (!reduces_early(c.mesh)) return;
  c.beside([&](Lane lane) {
    if (sharding_.stage == 0) return c.mesh.data_parallel().all_reduce(unit.grad, Reduce::sum, lane);
    const Tensor mine = unit.own(unit.grad);
    c.mesh[Axis::dp_shard].reduce_scatter(mine, unit.grad, Reduce::sum, lane);
    c.mesh[Axis::dp_replicate].all_reduce(mine, Reduce::sum, lane);
  });
}

void ParamStore::join(Ctx& c) {
  settle(c);
  if (last_micro_batch_ && reduces_early(c.mesh)) c.wait(c.beside([](Lane) {}));
}

void ParamStore::begin_use(Ctx& c, int unit) {
  gather(c, unit);
  if (c.recording()) ++units_[size_t(unit)]->uses;
  c.record("use", [this, unit](Ctx& cc) {
    end_gradients(cc, unit);
    release(unit);
  });
}

// The unit whose turn is next is gathered while its neighbour computes: in forward the one after, in backward the one
// before.
void ParamStore::use(Ctx& c, int unit) {
  begin_use(c, unit);
  start_gather(c, unit + 1);
}

void ParamStore::done(Ctx& c, int unit) {
  release(unit);
  c.record("done", [this, unit](Ctx& cc) {
    gather(cc, unit);
    start_gather(cc, unit - 1);
    begin_gradients(cc, unit);
  });
}

void ParamStore::use_last(Ctx& c, int unit) {
  begin_use(c, unit);
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
      all.push_back({&slice, specs_[id].unit, offsets_[id] + slice.offset, int(id)});
  return all;
}

}  // namespace athanor
