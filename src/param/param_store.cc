#include "param/param_store.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/int.h"
#include "base/rng.h"
#include "param/state_stream.h"

namespace athanor {
namespace {

// Returns the common prefix of the names of a unit's parameters, up to a dot.
std::string common_name(const std::vector<ParamSpec>& specs) {
  std::string name = specs.at(0).name;
  for (const ParamSpec& spec : specs)
    name.resize(
        size_t(std::mismatch(name.begin(), name.end(), spec.name.begin(), spec.name.end()).first - name.begin()));
  name.resize(std::min(name.size(), name.rfind('.')));
  return name.empty() ? specs[0].name : name;
}

// Returns the unit to prefetch while `unit` computes, or -1: `unit` + `step` if all units are gathered; else the next
// unit in that direction that is in host memory, so that the compute of units on the GPU also hides its copy.
int unit_to_prefetch(const ParamStore& params, int unit, int step) {
  const bool gathers_all = !params.has_host_units() || params.sharded();
  const auto& units = params.units();
  for (int u = unit + step; u >= 0 && u < int(units.size()) && !params.is_added(u); u += step) {
    if (gathers_all) return u;
    for (int each = u; each >= 0; each = units[size_t(each)]->next_together)
      if (units[size_t(each)]->home != Mem::device) return u;
  }
  return -1;
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

void ParamStore::separate_experts() {
  std::map<int, int> added_unit;  // keys: unit of the block
  for (int id = 0; id < int(specs_.size()); ++id) {
    ParamSpec& spec = specs_[size_t(id)];
    if (spec.experts == 1) continue;
    const auto [known, is_new] = added_unit.try_emplace(spec.unit, int(units_.size()));
    if (is_new) {
      units_.push_back(std::make_unique<Unit>());
      units_.back()->experts = true;
      use_together(spec.unit, known->second);
    }
    std::erase(units_[size_t(spec.unit)]->params, id);
    spec.unit = known->second;
    units_[size_t(spec.unit)]->params.push_back(id);
  }
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

const Adapters* ParamStore::adapters(Param w) const {
  const auto found = adapters_.find(w.id);
  return found == adapters_.end() ? nullptr : &found->second;
}

// Columns of y are rows of w, or for [in, out] all columns of w, which then is one tensor of the file.
void ParamStore::place_parts(Param w, Adapters& adapters) const {
  const Placement &of_w = placement(w), &of_b = placement(adapters.b);
  for (size_t i = 0; i < adapters.parts.size(); ++i) {
    Adapters::Part& part = adapters.parts[i];
    part.first = spec(w).in_out ? 0 : of_w.slices[part.slice].offset / of_w.shape[1];
    part.outputs = of_b.slices[i].numel / of_b.shape[1];
  }
}

void ParamStore::plan(MemoryPlan& plan, const Recipe& recipe, bool training, std::vector<StateSpec> states,
                      const Sharding& sharding) {
  states_ = training ? std::move(states) : std::vector<StateSpec>{};
  sharding_ = training ? sharding
                       : Sharding{.tensor = sharding.tensor,
                                  .experts = sharding.experts,
                                  .stages = sharding.stages,
                                  .worker = sharding.worker};
  if (sharding_.stage == 0 || sharding_.shards == 1) sharding_.stage = sharding_.index = 0, sharding_.shards = 1;
  placements_.clear();
  for (const ParamSpec& spec : specs_)
    placements_.push_back(place(spec, sharding_.tensor, sharding_.stage,
                                sharding_.stages.on_one_stage(size_t(spec.unit)), sharding_.experts));
  for (auto& [id, adapters] : adapters_) place_parts({id}, adapters);
  has_values_ = !training || recipe.separate_params(), split_ = training && recipe.master == DType::i16;
  saved_dtype_ = training && !split_ ? recipe.master : DType::f32;
  align_ = kAlign;
  for (const StateSpec& state : states_) align_ = std::max({align_, state.block, state.aligned});
  sharding_.states_home.stretch = round_up(sharding_.states_home.stretch, align_);
  for (const auto& unit : units_) lay_out(*unit);
  for (const size_t u : units_to_move()) units_[u]->home = Mem::pinned;
  const std::vector<std::vector<OwnPiece>> pieces = training ? pieces_by_unit() : std::vector<std::vector<OwnPiece>>{};
  const int stage = sharding_.stage;
  const LogicalShards& logical = sharding_.logical;
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = *units_[u];
    unit.states.resize(states_.size());
    if (!here(u)) {
      unit.layout.numel = unit.layout.trained = 0, unit.shard = {};
      continue;
    }
    const bool separate = has_values_ || unit.frozen;
    const bool quantized = stage >= 1 && lay_out_quantized(unit);
    const auto add = [&](MemoryKind kind, const std::string& name, DType dtype, bool sharded, Tensor* t,
                         Mem home = Mem::device) {
      plan.add(kind, cat(name, " of unit ", u), dtype, {sharded ? unit.layout.numel / unit.shards : unit.layout.numel},
               t, home);
    };
    if (unit.buffers) {
      add(MemoryKind::weights, "buffers", DType::f32, false, &unit.value);
      continue;
    }
    const bool as_values = unit.stored == StoredAs::values;
    if (separate)
      add(MemoryKind::weights,
          as_values              ? "weights"
          : is_int8(unit.stored) ? "int8 weights"
                                 : "NF4 weights",
          as_values ? recipe.compute : DType::u8, stage >= 3 || quantized, &unit.value, unit.home);
    if (!training || unit.frozen) continue;
    // If the weights are also the master weights, these are sharded only when the weights are.
    unit.masters_home = separate ? sharding_.states_home.mem : unit.home;
    add(MemoryKind::masters, "masters", recipe.master, separate || quantized ? stage >= 1 : stage >= 3, &unit.master,
        unit.masters_home);
    if (quantized) {
      add(MemoryKind::weights, "quantized", DType::u8, stage >= 3, &unit.quantized);
      const int64_t others = unit.others_before(unit.layout.numel);
      if (others > 0)
        plan.add(MemoryKind::weights, cat("unquantized weights of unit ", u), recipe.compute, {others}, &unit.others);
    }
    add(MemoryKind::gradients, "gradients", recipe.gradients, stage >= 2 && logical.count == 0, &unit.grad, unit.home);
    if (unit.home != Mem::device)
      plan.add(MemoryKind::gradients, cat("squared norm of unit ", u), DType::f64, {1}, &unit.norm);
    unit.joined.resize(size_t(logical.levels()));
    for (size_t level = 0; level < unit.joined.size(); ++level)
      add(MemoryKind::gradients, cat("joined gradients, level ", level), recipe.gradients, false, &unit.joined[level]);
    plan_states(plan, u, pieces[u]);
  }
}

// Sets a unit's name, offsets of its parameters and this rank's shard.
void ParamStore::lay_out(Unit& unit) {
  std::vector<ParamSpec> specs;
  for (int id : unit.params) specs.push_back(specs_[size_t(id)]);
  unit.name = common_name(specs);
  unit.buffers = specs[0].buffer;
  unit.frozen = specs[0].frozen || unit.buffers;
  unit.stored = specs[0].stored;
  for (const ParamSpec& spec : specs) {
    CHECK(spec.frozen == specs[0].frozen && spec.buffer == unit.buffers, spec.name, " and ", specs[0].name,
          " of one unit: one is frozen or a buffer, one is not");
    CHECK(spec.stored == unit.stored, spec.name, " and ", specs[0].name, " of one unit are stored in two forms");
  }
  for (size_t i = 0; i < specs.size(); ++i) specs[i].shape = stored_shape(unit.params[i]);
  const bool of_experts = unit.experts && sharding_.stage > 0;
  unit.shards = of_experts ? sharding_.experts.shards : sharding_.shards;
  unit.layout = FlatLayout::make(specs, std::max(unit.shards, int(sharding_.logical.count)), align_);
  for (size_t i = 0; i < unit.params.size(); ++i) offsets_[size_t(unit.params[i])] = unit.layout.offset[i];
  const int64_t share = unit.layout.numel / unit.shards;
  const int index = of_experts ? sharding_.experts.shard : sharding_.index;
  unit.shard = {share * index, share * (index + 1)};
}

std::vector<std::vector<ParamStore::OwnPiece>> ParamStore::pieces_by_unit() const {
  const std::vector<Piece> all = pieces();
  const std::vector<Range> extent = extents();
  std::vector<std::vector<OwnPiece>> by_unit(units_.size());
  for (size_t i = 0; i < all.size(); ++i) by_unit[size_t(all[i].unit)].push_back({i, extent[i]});
  return by_unit;
}

// Each segment starts on a cache line, like parameters.
void ParamStore::plan_states(MemoryPlan& plan, size_t u, const std::vector<OwnPiece>& pieces) {
  Unit& unit = *units_[u];
  const Range held = sharding_.stage >= 1 ? unit.shard : Range{0, unit.layout.numel};
  for (size_t s = 0; s < states_.size(); ++s) {
    if (has_sizes(s)) {
      plan_sizes(plan, u, s, pieces);
      continue;
    }
    State& state = unit.states[s];
    state.block = states_[s].block;
    std::vector<Range> ranges;
    for (const OwnPiece& piece : pieces) {
      if (!keeps(s, piece.number)) continue;
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
    if (size == 0) continue;
    state.home = sharding_.states_home.mem;
    plan.add(MemoryKind::optimizer, cat(states_[s].name, " of unit ", u), states_[s].dtype, {size / state.block},
             &state.t, state.home);
  }
}

void ParamStore::plan_sizes(MemoryPlan& plan, size_t u, size_t s, const std::vector<OwnPiece>& pieces) {
  State& state = units_[u]->states[s];
  int64_t size = 0;
  for (const OwnPiece& piece : pieces) {
    if (!keeps(s, piece.number)) continue;
    state.firsts.emplace_back(piece.number, size);
    size += round_up(states_[s].sizes[piece.number], kAlign);
  }
  if (size > 0)
    plan.add(MemoryKind::optimizer, cat(states_[s].name, " of unit ", u), states_[s].dtype, {size}, &state.t);
}

bool ParamStore::keeps(size_t state, size_t piece) const {
  return states_[state].pieces.empty() || states_[state].pieces[piece];
}

std::vector<ParamStore::Range> ParamStore::extents() const {
  const std::vector<Piece> all = pieces();
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t i) {  // a piece without elements on this rank sorts before others
      return std::tuple(all[i].unit, all[i].offset, all[i].part ? all[i].part->numel : int64_t{1});
    };
    return key(a) < key(b);
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

void ParamStore::refresh_values(Ctx& c) {
  cast_masters(c);
  if (sharding_.packed.weights) take_sent_weights(c);
  gather_weights(c);
}

void ParamStore::cast_masters(Ctx& c) {
  std::vector<StateStretch> all;
  if (!split_) all = state_stretches(*this, {.masters = true, .values = true});
  std::erase_if(all, [&](const StateStretch& s) { return !units_[s.unit]->master || !units_[s.unit]->value; });
  for (StateStretch& s : all) s.writes_masters = false;
  stream_states(c, *this, all, [&](const StateStretch& s) {
    const Unit& unit = *units_[s.unit];
    const Range range = unit.is_shard(unit.master) ? unit.owned(s.range.begin, s.range.end) : s.range;
    const Tensor value = unit.values_on_device(range), master = unit.masters_on_device(range);
    if (value.dtype == DType::bf16)
      c.run(SplitMaster{.param = value, .master = master});
    else
      c.run(Cast{.y = value, .x = master});
  });
}

// At stages 1 and 2 each rank holds all weights, or their quantized values, and has updated one shard of them.
void ParamStore::gather_weights(Ctx& c) {
  for (const auto& unit : units_) {
    if (unit->layout.numel == 0 || unit->frozen) continue;
    const CollectiveSubject subject(unit->name);
    if (unit->quantized)
      gather_others(c, *unit);
    else if (sharding_.stage == 1 || sharding_.stage == 2)
      c.all_gather(shards_of(c.mesh, *unit), unit->weights(), unit->own(unit->weights()));
  }
}

Tensor ParamStore::view(const Tensor& flat, Param p) const {
  return {flat.at(offsets_[size_t(p.id)]), flat.dtype, placements_[size_t(p.id)].shape};
}

VocabPart ParamStore::vocab_part(Param p) const {
  const ParamSpec& spec = specs_[size_t(p.id)];
  const Placement& placement = placements_[size_t(p.id)];
  if (!placement.is_cut()) return {};
  CHECK(spec.role == Role::embedding && spec.cut.axis == 0, spec.name, " has no rows of tokens");
  const Placement::Slice& slice = placement.slices.at(0);
  const int64_t row = placement.shape[1];
  return {.first = slice.strips.at(0).at / row, .count = slice.numel / row, .total = spec.slices[0].shape[0]};
}

Tensor ParamStore::value(Param p) const {
  const ParamSpec& spec = specs_[size_t(p.id)];
  const Unit& unit = *units_[size_t(spec.unit)];
  CHECK(unit.stored == StoredAs::values, spec.name, " has no values but as GEMMs read them");
  if (unit.quantized) {
    CHECK(!spec.gathered_quantized, spec.name, " is whole on no rank unless quantized");
    return {unit.others.at(unit.others_before(offsets_[size_t(p.id)])), unit.others.dtype,
            placements_[size_t(p.id)].shape};
  }
  const Tensor& weights = unit.gathered ? unit.gathered.t : unit.weights();
  CHECK(unit.gathered || (unit.home == Mem::device && !unit.is_shard(weights)), spec.name,
        " is read outside of use() and done() of its unit");
  return view(weights, p);
}

Tensor ParamStore::grad(Param p) const {
  const ParamSpec& spec = specs_[size_t(p.id)];
  const Unit& unit = *units_[size_t(spec.unit)];
  const Tensor& grad = unit.whole_grad ? unit.whole_grad.t : unit.grad;
  CHECK(unit.whole_grad || (unit.home == Mem::device && !unit.is_shard(grad)), spec.name,
        " gets a gradient outside of its unit's backward");
  return view(grad, p);
}

// Starts the all-gather concurrently with compute; no-op if it has started or the unit does not exist.
void ParamStore::start_gather(Ctx& c, int u) {
  if (u < 0 || u >= int(units_.size()) || units_[size_t(u)]->gathered) return;
  Unit& unit = *units_[size_t(u)];
  if (unit.home != Mem::device) {
    start_bringing(c, unit);
    return start_gather(c, unit.next_together);
  }
  if (sharding_.stage < 3) return has_host_units() ? start_gather(c, unit.next_together) : void();
  const CollectiveSubject subject(unit.name);
  const Tensor& shard = unit.quantized ? unit.quantized : unit.weights();
  if (unit.shards > 1) {
    unit.gathered = c.alloc(unit.quantized ? "quantized unit" : "weights of a unit", shard.dtype, {unit.layout.numel});
    unit.gathering =
        c.overlap([&](Stream stream) { shards_of(c.mesh, unit).all_gather(unit.gathered.t, shard, stream); });
  }
  start_gather(c, unit.next_together);
}

void ParamStore::gather(Ctx& c, int u) {
  if (has_host_units()) count_waited(c, u);
  start_gather(c, u);
  for (int each = u; each >= 0; each = units_.at(size_t(each))->next_together)
    c.wait(std::move(units_.at(size_t(each))->gathering));
}

void ParamStore::release(int u) {
  for (int each = u; each >= 0; each = units_.at(size_t(each))->next_together) units_[size_t(each)]->gathered = {};
}

void ParamStore::begin_gradients(Ctx& c, int u) {
  for (int each = u; each >= 0; each = units_[size_t(each)]->next_together) {
    Unit& unit = *units_[size_t(each)];
    if (unit.frozen || !here(size_t(each))) continue;
    if (unit.home != Mem::device && !sharded()) {
      start_gradients_of(c, unit, true);
      c.wait(std::move(unit.grad_comes));
      continue;
    }
    if (!unit.is_shard(unit.grad)) continue;
    unit.whole_grad = c.alloc("gradients of a unit", unit.grad.dtype, {unit.layout.numel});
    c.run(Fill{.x = unit.whole_grad.t});
  }
}

// Starts reduce-scattering this micro-batch's gradients; settle() adds the result when the reduction of the next unit
// starts.
void ParamStore::end_gradients(Ctx& c, int u) {
  const bool last = --c.tape->uses[u] == 0;
  for (int each = u; each >= 0; each = units_[size_t(each)]->next_together)
    if (!units_[size_t(each)]->frozen && here(size_t(each))) end_gradients_of(c, *units_[size_t(each)], last);
}

void ParamStore::end_gradients_of(Ctx& c, Unit& unit, bool last) {
  if (unit.home != Mem::device && !sharded()) {
    send_gradients(c, unit, std::move(unit.whole_grad), {0, unit.layout.numel});
    unit.whole_grad = {};
    return;
  }
  const CollectiveSubject subject(unit.name);
  if (last) reduce_early(c, unit);
  if (!unit.is_shard(unit.grad)) return;
  settle(c);
  Communicator& shards = shards_of(c.mesh, unit);
  reducing_ = {&unit, std::exchange(unit.whole_grad, {}), {}, nullptr};
  const Tensor whole = reducing_.whole.t, mine = unit.own(whole);
  if (sharding_.packed.gradients && unit.shards > 1) {
    reducing_.packed.begin(c, shards, whole, packed_format(c.mesh), true);
  } else {
    reducing_.workspace = c.sum_workspace(shards, whole);
    reducing_.ticket =
        c.overlap([&](Stream stream) { shards.sum_scatter(mine, whole, reducing_.workspace.t, stream); });
  }
  if (unit.home == Mem::device) return;
  if (sending_.unit == &unit) wait_for_sent(c);
  reducing_.shard = c.alloc("gradients of a shard", unit.grad.dtype, unit.grad.shape);
  reducing_.comes = bring_gradients(c, unit, reducing_.shard.t, false);
}

void ParamStore::settle(Ctx& c) {
  if (!reducing_.unit) return;
  c.wait(std::move(reducing_.ticket));
  c.wait(std::move(reducing_.comes));
  Unit& unit = *std::exchange(reducing_.unit, nullptr);
  if (reducing_.packed) reducing_.packed.end(c, unit.own(reducing_.whole.t));
  const Tensor grad = reducing_.shard ? reducing_.shard.t : unit.grad;
  c.run(Add{.y = grad, .a = grad, .b = unit.own(reducing_.whole.t)});
  reducing_.whole = reducing_.workspace = {};
  if (reducing_.shard) send_gradients(c, unit, std::exchange(reducing_.shard, {}), unit.shard);
}

void ParamStore::join(Ctx& c) {
  settle(c);
  wait_for_sent(c);
  leave_early_room(c);
  if (last_micro_batch_ && reduces_early(c.mesh)) c.wait(c.overlap([](Stream) {}));
}

void ParamStore::begin_use(Ctx& c, int unit) {
  gather(c, unit);
  if (c.recording()) ++c.tape->uses[unit];
  c.record("use", [this, unit](Ctx& cc) {
    end_gradients(cc, unit);
    release(unit);
  });
}

// Also prefetches another unit while this one computes: a later unit in forward, an earlier one in backward.
void ParamStore::use(Ctx& c, int unit) {
  begin_use(c, unit);
  start_gather(c, unit_to_prefetch(*this, unit, 1));
}

void ParamStore::done(Ctx& c, int unit) {
  release(unit);
  c.record("done", [this, unit](Ctx& cc) {
    gather(cc, unit);
    const int before = unit_to_prefetch(*this, unit, -1);
    start_gather(cc, before);
    begin_gradients(cc, unit);
    start_gradients(cc, before);
  });
}

void ParamStore::use_last(Ctx& c, int unit) {
  begin_use(c, unit);
  if (c.recording()) begin_gradients(c, unit);
}

int64_t ParamStore::parameter_count() const {
  int64_t count = 0;
  for (const ParamSpec& spec : specs_)
    for (const HfSlice& slice : spec.slices) count += spec.buffer ? 0 : slice.shape.numel();
  return count;
}

int64_t ParamStore::trained_count() const {
  int64_t count = 0;
  for (const ParamSpec& spec : specs_)
    for (const HfSlice& slice : spec.slices) count += spec.trainable ? slice.shape.numel() : 0;
  return count;
}

std::vector<ParamStore::Piece> ParamStore::pieces() const {
  std::vector<Piece> all;
  for (size_t id = 0; id < specs_.size(); ++id)
    for (size_t s = 0; s < specs_[id].slices.size(); ++s) {
      const HfSlice& slice = specs_[id].slices[s];
      const Placement::Slice* part = placements_.empty() ? nullptr : &placements_[id].slices[s];
      all.push_back({.slice = &slice,
                     .unit = specs_[id].unit,
                     .offset = offsets_[id] + (specs_[id].stored != StoredAs::values ? record_offset(int(id), s)
                                               : part                                ? part->offset
                                                                                     : slice.offset),
                     .param = int(id),
                     .part = part});
    }
  return all;
}

}  // namespace athanor
