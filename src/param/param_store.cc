#include "param/param_store.h"

#include "base/rng.h"

namespace athanor {
namespace {

constexpr int64_t kAlign = 64;  // elements: every parameter starts on a cache line, whatever its dtype

Tensor part(const Tensor& flat, int64_t offset, int64_t numel) { return {flat.at(offset), flat.dtype, {numel}}; }

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

void ParamStore::plan(MemoryPlan& plan, const Recipe& recipe, bool training, std::vector<StateSpec> states) {
  states_ = training ? std::move(states) : std::vector<StateSpec>{};
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = *units_[u];
    std::vector<ParamSpec> specs;
    for (int id : unit.params) specs.push_back(specs_[size_t(id)]);
    unit.layout = FlatLayout::make(specs, 1, kAlign);
    for (size_t i = 0; i < unit.params.size(); ++i) offsets_[size_t(unit.params[i])] = unit.layout.offset[i];
    const Shape flat{unit.layout.numel};
    const std::string suffix = cat(" of unit ", u);
    if (!training || recipe.separate_params())
      plan.add(MemoryKind::weights, "weights" + suffix, recipe.compute, flat, &unit.value);
    if (!training) continue;
    plan.add(MemoryKind::masters, "masters" + suffix, recipe.master, flat, &unit.master);
    plan.add(MemoryKind::gradients, "gradients" + suffix, DType::f32, flat, &unit.grad);
    unit.states.resize(states_.size());
    for (size_t s = 0; s < states_.size(); ++s)
      plan.add(MemoryKind::optimizer, states_[s].name + suffix, states_[s].dtype, flat, &unit.states[s]);
  }
}

void ParamStore::init(Ctx& c, uint64_t seed) {
  for (size_t id = 0; id < specs_.size(); ++id) {
    const ParamSpec& spec = specs_[id];
    const Unit& unit = *units_[size_t(spec.unit)];
    const Tensor& flat = unit.master ? unit.master : unit.value;
    for (const HfSlice& slice : spec.slices)
      c.run(RandomNormal{.x = part(flat, offsets_[id] + slice.offset, slice.shape.numel()),
                         .seed = seed,
                         .stream = stream_of(slice.name),
                         .mean = spec.init_mean,
                         .std = spec.init_std});
  }
  refresh_values(c);
}

void ParamStore::refresh_values(Ctx& c) {
  for (const auto& unit : units_)
    if (unit->master && unit->value) c.run(Cast{.y = unit->value, .x = unit->master});
}

Tensor ParamStore::view(const Tensor& flat, const ParamSpec& spec, int64_t offset) const {
  return {flat.at(offset), flat.dtype, spec.shape};
}

Tensor ParamStore::value(Param p) const {
  const ParamSpec& spec = specs_[size_t(p.id)];
  const Unit& unit = *units_[size_t(spec.unit)];
  return view(unit.value ? unit.value : unit.master, spec, offsets_[size_t(p.id)]);
}

Tensor ParamStore::grad(Param p) const {
  const ParamSpec& spec = specs_[size_t(p.id)];
  return view(units_[size_t(spec.unit)]->grad, spec, offsets_[size_t(p.id)]);
}

// With one rank all weights are resident: nothing to gather, nothing to reduce.
void ParamStore::use(Ctx&, int unit) { CHECK(unit >= 0 && unit < int(units_.size()), "unit ", unit); }
void ParamStore::done(Ctx&, int unit) { CHECK(unit >= 0 && unit < int(units_.size()), "unit ", unit); }

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
