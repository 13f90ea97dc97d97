#include "plan/precision.h"

#include <algorithm>
#include <vector>

#include "base/format.h"
#include "engine/engine.h"
#include "perf/roofline.h"

namespace athanor {
namespace {

// The layers with the same name in all blocks.
struct Kind {
  std::string pattern;  // like "*.self_attn.q_proj.weight": name of the first of the layer's tensors in files
  Shape shape;
};

std::vector<Kind> quantized_kinds(const ParamStore& params) {
  std::vector<Kind> kinds;
  for (const ParamSpec& spec : params.specs()) {
    if (spec.role != Role::matrix || !spec.low_precision) continue;
    const std::string& name = spec.slices.front().name;
    const std::string pattern = "*" + name.substr(params.units()[size_t(spec.unit)]->name.size());
    if (std::ranges::find(kinds, pattern, &Kind::pattern) == kinds.end()) kinds.push_back({pattern, spec.shape});
  }
  return kinds;
}

double step_seconds(Engine& engine, const Roofline& limits) {
  engine.memory();  // performs the dry run, which records the launches
  return least_sum(planned_rows(engine, limits));
}

// Seconds of a step with these layers in bf16; `all`: true if they are all the low-precision layers, so that the whole
// recipe is bf16.
double seconds_without(const Engine& engine, Backend backend, const Roofline& limits,
                       const std::vector<std::string>& patterns, bool all) {
  EngineOptions o = engine.options();
  const DType gradients = o.recipe.gradients;
  if (all) {
    o.recipe = make_recipe("bf16", o.recipe.master);
    o.recipe.gradients = gradients;
  } else {
    o.high_layers.match.insert(o.high_layers.match.end(), patterns.begin(), patterns.end());
  }
  Engine other(engine.model().config(), o, backend);
  return step_seconds(other, limits);
}

std::string line(const std::string& name, const std::string& size, double seconds, double chosen) {
  return format_text("  %-38s %14s %12.2f %+8.2f %%\n", name.c_str(), size.c_str(), seconds * 1e3,
                     100 * (seconds / chosen - 1));
}

}  // namespace

std::string precision_text(Engine& engine, Backend backend, const Roofline& limits) {
  if (!multiplies(engine, Factors::quantized) && !multiplies(engine, Factors::fp4_values)) return {};
  const double chosen = step_seconds(engine, limits);
  const std::vector<Kind> kinds = quantized_kinds(engine.model().params());
  std::vector<std::string> faster;
  std::string text = cat("\nlayers in ", engine.options().recipe.four_bits() ? 4 : 8,
                         " bits                                 weight   in bf16: step ms   longer by\n");
  for (const auto& [pattern, shape] : kinds) {
    const double seconds = seconds_without(engine, backend, limits, {pattern}, kinds.size() == 1);
    text += line(pattern, cat(shape[0], " x ", shape[1]), seconds, chosen);
    if (seconds < chosen) faster.push_back(pattern);
  }
  if (faster.empty()) return text + "  none of them is faster in bf16\n\n";
  const bool all = faster.size() == kinds.size();
  const double best = seconds_without(engine, backend, limits, faster, all);
  std::string list;
  for (const std::string& pattern : faster) list += cat(list.empty() ? "" : ", ", '"', pattern, '"');
  text += line("all that are shorter, together", "", best, chosen);
  if (all) return text + "  all of them are faster in bf16: \"precision\": \"bf16\"\n\n";
  return text + cat("  faster in bf16: \"fp8\": {\"exclude\": [", list, "]}\n\n");
}

}  // namespace athanor
