#include "plan/forecast.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "train/setup.h"

namespace athanor {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMinShown = 0.001;  // effects below this fraction of the step are omitted

struct StepPart {
  const char* key;
  const char* words;
  double seconds;
};

std::vector<StepPart> parts_of(const Prediction& p) {
  return {{"micro_batches", "computing micro-batches", p.compute - p.update - p.slowed},
          {"update", "updating the weights", p.update},
          {"slowed", "computing that slows down while others send", p.slowed},
          {"gradients_and_weights", "waiting for gradients and weights", p.waits.data},
          {"keys_and_values", "waiting for keys and values", p.waits.context},
          {"tensor", "waiting for the sums of tensor parallelism", p.waits.tensor},
          {"experts", "waiting for rows of experts", p.waits.experts},
          {"stages", "waiting for other stages", p.waits.stages}};
}

}  // namespace

Forecast forecast(const RankPlan& plan) {
  const Assumptions& assumed = plan.assumed();
  Forecast f{.expected = plan.with(assumed)};
  const double step = f.expected.step();
  // Assumptions may be better than ideal: GEMMs of a step that run faster than the large one.
  f.bound = std::min(plan.with({}).step(), step);
  double better = 0, worse = 0;  // sums of squares
  for (const Assumption& row : all_assumptions()) {
    Assumptions low = assumed, high = assumed;
    low.*row.value *= 1 - kVaried, high.*row.value *= 1 + kVaried;
    const double a = plan.with(low).step() - step, b = plan.with(high).step() - step;
    const Sensitivity s{&row, assumed.*row.value, std::min(a, b), std::max(a, b)};
    better += s.better * s.better, worse += s.worse * s.worse;
    if (s.worse > kMinShown * step) f.sensitive.push_back(s);
  }
  std::ranges::stable_sort(f.sensitive, std::greater{}, &Sensitivity::worse);
  f.fastest = step - std::sqrt(better), f.slowest = step + std::sqrt(worse);
  return f;
}

Economy economy_of(const Config& c, const Cluster& on, double step_seconds, const Prediction& p) {
  const double tokens = double(c.global_batch_size * c.seq_length) / step_seconds;
  const double peak = on.gpu.peak_flops(make_recipe(name_of(c.precision), DType::f32).compute);
  const double mfu = peak > 0 ? tokens * p.flops_per_token / (double(on.ranks) * peak) : 0;
  return {tokens, mfu, 1e9 / tokens / 3600 * on.ranks};
}

std::string binding(const Prediction& p) {
  const std::vector<StepPart> parts = parts_of(p);
  const auto& most = *std::ranges::max_element(parts, {}, &StepPart::seconds);
  std::string text = cat(most.words, ", ", std::lround(100 * most.seconds / p.step()), " % of the step");
  if (p.recompute.granularity != Recompute::Granularity::none)
    text += cat("; and memory: activations are recomputed (", to_text(p.recompute), ")");
  return text;
}

std::string to_text(const Forecast& f) {
  const double step = f.expected.step();
  std::string out = cat("expected step ", format_duration(step), ", between ", format_duration(f.fastest), " and ",
                        format_duration(f.slowest), " if each assumption errs by ", int(100 * kVaried),
                        " %; no step beats ", format_duration(f.bound), "\n");
  for (const Sensitivity& s : f.sensitive)
    out += format_text("  %-12s %-9.3g %+5.1f %% step time if %d %% better, %+5.1f %% if worse (%s)\n", s.of->name,
                       s.value, 100 * s.better / step, int(100 * kVaried), 100 * s.worse / step, s.of->unit);
  return out;
}

std::string to_json(const Config& c, const Cluster& on, const Forecast& f, int indent) {
  const Prediction& p = f.expected;
  const Economy e = economy_of(c, on, p.step(), p);
  Json parts = Json::object(), memory = Json::object(), sensitive = Json::array();
  for (const StepPart& part : parts_of(p)) parts[part.key] = part.seconds;
  for (size_t k = 0; k < size_t(kMemoryKinds); ++k)
    if (p.memory_by_kind[k] > 0) memory[name_of(MemoryKind(k))] = p.memory_by_kind[k];
  for (const Sensitivity& s : f.sensitive)
    sensitive.push_back({{"assumption", s.of->name},
                         {"value", s.value},
                         {"unit", s.of->unit},
                         {"better_seconds", s.better},
                         {"worse_seconds", s.worse}});
  return json_text(Json{{"gpu", on.gpu.key ? Json(on.gpu.key) : Json()},
                        {"ranks", on.ranks},
                        {"nodes", on.nodes},
                        {"tokens_per_step", c.global_batch_size * c.seq_length},
                        {"micro_batch_size", p.micro_batch_size},
                        {"micro_batches", p.micro_batches},
                        {"recompute", to_text(p.recompute)},
                        {"flops_per_token", p.flops_per_token},
                        {"memory_bytes", p.memory},
                        {"memory_by_kind", memory},
                        {"bound_seconds", f.bound},
                        {"expected_seconds", p.step()},
                        {"range_seconds", {f.fastest, f.slowest}},
                        {"tokens_per_second", e.tokens_per_second},
                        {"mfu", e.mfu > 0 ? Json(e.mfu) : Json()},
                        {"gpu_hours_per_billion_tokens", e.gpu_hours},
                        {"parts_seconds", parts},
                        {"bound_by", binding(p)},
                        {"sensitivity", sensitive}},
                   indent);
}

}  // namespace athanor
