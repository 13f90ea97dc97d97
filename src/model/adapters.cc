#include "model/adapters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"

namespace athanor {
namespace {

constexpr std::string_view kWeight = ".weight", kAllLinear = "all-linear";

// Matches a module like PEFT matches the entries of `target_modules`.
bool fits(const std::string& target, const std::string& module) {
  return target == kAllLinear || target == module || module.ends_with("." + target);
}

bool is_target(const std::string& module, const LoraOptions& options) {
  return std::ranges::any_of(options.targets, [&](const std::string& target) { return fits(target, module); });
}

// Throws an Error if a target matches no layer.
void require_targets(const std::vector<ParamSpec>& specs, const LoraOptions& options) {
  std::set<std::string> modules, names, others;  // others: routers and experts
  for (const ParamSpec& spec : specs)
    for (const HfSlice& slice : spec.slices)
      if (spec.role == Role::matrix) (is_linear(spec) ? modules : others).insert(module_of(slice.name));
  for (const std::string& module : modules) names.insert(module.substr(module.rfind('.') + 1));
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "" : ", ") + name;
  for (const std::string& target : options.targets) {
    const auto names_it = [&](const std::string& module) { return fits(target, module); };
    if (std::ranges::any_of(modules, names_it)) continue;
    const bool of_experts = std::ranges::any_of(others, names_it);
    throw Error(cat("lora.targets: \"", target, "\" matches ",
                    of_experts ? "only routers or routed experts, which stay frozen" : "no linear layer of the model",
                    "; its layers", of_experts ? " that can have adapters" : "", " are ", known,
                    ", or all-linear for all of them"),
                Exit::usage);
  }
}

// Returns the cut of the outputs of some slices of a weight that is cut by outputs.
Cut cut_of_outputs(const ParamSpec& w, const std::vector<Adapters::Part>& parts) {
  Cut cut{.axis = 0, .parts = {}, .whole = w.cut.whole};
  int64_t at = 0;
  for (size_t p = 0; p < w.cut.parts.size(); at += w.cut.parts[p++]) {
    const bool chosen = w.in_out || std::ranges::any_of(parts, [&](const Adapters::Part& part) {
                          const int64_t first = w.slices[part.slice].offset / w.shape[1];
                          return first <= at && at < first + w.slices[part.slice].shape[0];
                        });
    if (!chosen) continue;
    if (w.cut.repeated >= 0 && int(p) >= w.cut.repeated && cut.repeated < 0) cut.repeated = int(cut.parts.size());
    cut.parts.push_back(w.cut.parts[p]);
  }
  return cut;
}

// Cuts the adapters' matrices like the weight: B and the magnitudes by its outputs, A by its inputs. Each rank then has
// partial sums of the gradients of those that are whole.
void cut_like(const ParamSpec& w, const std::vector<Adapters::Part>& parts, ParamSpec& a, ParamSpec& b, ParamSpec& m) {
  if (w.cut.axis < 0) {
    a.partial = b.partial = m.partial = w.partial;
  } else if ((w.cut.axis == 0) != w.in_out) {
    b.cut = m.cut = cut_of_outputs(w, parts);
    a.partial = PartialGradient::of_heads;
  } else {
    a.cut = {.axis = 1, .parts = w.cut.parts, .whole = w.cut.whole};
    b.partial = m.partial = PartialGradient::of_heads;
  }
}

// Declares the adapters' matrices for one weight in memory, which may be several modules of the file.
Adapters declare(ParamStore& params, const ParamSpec& w, int unit, const LoraOptions& options) {
  const int64_t in = w.shape[w.in_out ? 0 : 1], rank = options.rank;
  Adapters all{.rank = rank, .scale = float(options.scale()), .dropout = float(options.dropout)};
  // A has the variance of U(-1 / sqrt(in), 1 / sqrt(in)), PEFT's default; B is zero, so that training starts from the
  // frozen model.
  ParamSpec a{.name = w.name + ".lora_A",
              .shape = {0, in},
              .role = Role::matrix,
              .unit = unit,
              .init_std = float(1 / std::sqrt(3.0 * double(in)))};
  ParamSpec b{.name = w.name + ".lora_B", .shape = {0, rank}, .role = Role::matrix, .unit = unit};
  // Approximates the norms of initial weights; a run sets the magnitudes to the norms of the weights that it loads.
  ParamSpec m{.name = w.name + ".lora_magnitude_vector",
              .shape = {0},
              .role = Role::vector,
              .unit = unit,
              .init_mean = float(w.init_std * std::sqrt(double(in)))};
  for (size_t s = 0; s < w.slices.size(); ++s) {
    const HfSlice& slice = w.slices[s];
    const std::string module = module_of(slice.name);
    if (!is_target(module, options)) continue;
    const int64_t outputs = slice.shape[w.in_out ? 1 : 0];
    all.parts.push_back({.slice = s});
    a.slices.push_back({lora_a_name(module), {rank, in}, a.shape.numel()});
    b.slices.push_back({lora_b_name(module), {outputs, rank}, b.shape.numel()});
    m.slices.push_back({lora_magnitude_name(module), {outputs}, m.shape.numel()});
    a.shape.dim[0] += rank, b.shape.dim[0] += outputs, m.shape.dim[0] += outputs;
  }
  if (all.parts.empty()) return all;
  cut_like(w, all.parts, a, b, m);
  all.a = params.declare(std::move(a));
  all.b = params.declare(std::move(b));
  if (options.variant == LoraVariant::dora) all.magnitude = params.declare(std::move(m));
  return all;
}

}  // namespace

std::string module_of(const std::string& weight) {
  return weight.ends_with(kWeight) ? weight.substr(0, weight.size() - kWeight.size()) : weight;
}
std::string lora_a_name(const std::string& module) { return module + ".lora_A.weight"; }
std::string lora_b_name(const std::string& module) { return module + ".lora_B.weight"; }
std::string lora_magnitude_name(const std::string& module) { return module + ".lora_magnitude_vector"; }

void add_adapters(Model& model, const LoraOptions& options) {
  ParamStore& params = model.params();
  const std::vector<ParamSpec> base = params.specs();
  require_targets(base, options);
  std::map<int, int> added_unit;  // keys: unit of the block
  for (int id = 0; id < int(base.size()); ++id) {
    params.freeze_for_good({id});
    const ParamSpec& spec = base[size_t(id)];
    if (!is_linear(spec)) continue;
    const auto known = added_unit.find(spec.unit);
    const int unit = known == added_unit.end() ? int(params.units().size()) : known->second;
    Adapters adapters = declare(params, spec, unit, options);
    if (adapters.parts.empty()) continue;
    if (known == added_unit.end()) params.use_together(spec.unit, unit), added_unit[spec.unit] = unit;
    params.adapt({id}, std::move(adapters));
  }
  if (options.base == BasePrecision::none) return;
  std::vector<Param> matrices;
  for (int id = 0; id < int(base.size()); ++id)
    if (is_linear_or_expert(base[size_t(id)])) matrices.push_back({id});
  params.store_as(options.double_quant ? StoredAs::nf4_nested : StoredAs::nf4, matrices);
}

}  // namespace athanor
