#include "command/plan_changes.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/json.h"
#include "metrics/format.h"
#include "train/setup.h"

namespace athanor {
namespace {

struct Change {
  std::string keys;
  std::optional<Prediction> then;  // none: `why` it is not possible
  std::string why;
};

struct Wanted {
  std::string keys;
  Config config;
};

std::vector<Wanted> wanted(const Config& c, const Prediction& before) {
  std::vector<Wanted> all;
  const auto add = [&](const std::string& keys, const auto& set) {
    Config changed = c;
    set(changed);
    all.push_back({keys, changed});
  };
  if (zero_stage(c) < 3) {
    const int next = zero_stage(c) + 1;
    add(cat("zero_stage ", next), [&](Config& o) { o.zero_stage = next; });
  }
  for (const int64_t size : {before.micro_batch_size * 2, before.micro_batch_size / 2})
    if (size > 0) add(cat("micro_batch_size ", size), [&](Config& o) { o.micro_batch_size = size; });
  const auto recompute = [&](RecomputeGranularity granularity) {
    add(cat("recompute_granularity ", name_of(granularity)),
        [&](Config& o) { o.recompute_granularity = granularity, o.recompute_num_layers = 1; });
  };
  using Granularity = Recompute::Granularity;
  if (before.recompute.granularity == Granularity::none) recompute(RecomputeGranularity::selective);
  if (before.recompute.granularity != Granularity::full) recompute(RecomputeGranularity::full);
  for (const Precision precision : {Precision::bf16, Precision::fp8_tensorwise, Precision::fp8_rowwise_gw_hp})
    if (precision != c.precision)
      add(cat("precision ", name_of(precision)), [&](Config& o) { o.precision = precision; });
  if (c.grad_dtype != SumDtype::bf16) add("grad_dtype bf16", [](Config& o) { o.grad_dtype = SumDtype::bf16; });
  if (c.offload_optimizer == Offload::none)
    add("offload_optimizer cpu", [](Config& o) { o.offload_optimizer = Offload::cpu; });
  return all;
}

std::vector<Change> changes(const Config& c, const Cluster& on, const Prediction& before) {
  std::vector<Change> all;
  for (Wanted& w : wanted(c, before)) {
    Change change{.keys = w.keys, .then = {}, .why = {}};
    try {
      validate(w.config);
      change.then = RankPlan(w.config, on).expected();
      if (change.then->recompute.granularity == before.recompute.granularity &&
          w.config.recompute_granularity != c.recompute_granularity) {
        change.then.reset();
        change.why =
            cat("it does not fit, so that activations are recomputed as before (", to_text(before.recompute), ")");
      }
    } catch (const Error& e) {
      const std::string why = e.what();
      change.why = why.substr(0, why.find('\n'));
    }
    all.push_back(change);
  }
  return all;
}

}  // namespace

std::string changes_text(const Config& c, const Cluster& on, const Prediction& before) {
  std::string out;
  for (const Change& change : changes(c, on, before)) {
    char line[160];
    std::snprintf(line, sizeof line, "  %-37s ", change.keys.c_str());
    out += line;
    if (!change.then) {
      out += cat("not possible: ", change.why, "\n");
      continue;
    }
    std::snprintf(line, sizeof line,
                  "%+.1f %% step time, %s of memory instead of %s, micro-batch %lld x %lld, recomputed %s\n",
                  100 * (change.then->step() / before.step() - 1), format_bytes(change.then->memory).c_str(),
                  format_bytes(before.memory).c_str(), static_cast<long long>(change.then->micro_batch_size),
                  static_cast<long long>(change.then->micro_batches), to_text(change.then->recompute).c_str());
    out += line;
  }
  return out;
}

std::string changes_json(const Config& c, const Cluster& on, const Prediction& before) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Change& change : changes(c, on, before))
    if (change.then)
      all.push_back({{"change", change.keys},
                     {"expected_seconds", change.then->step()},
                     {"step_time", change.then->step() / before.step() - 1},
                     {"memory_bytes", change.then->memory},
                     {"micro_batch_size", change.then->micro_batch_size},
                     {"recompute", to_text(change.then->recompute)}});
    else
      all.push_back({{"change", change.keys}, {"not_possible", change.why}});
  return json_text(all);
}

}  // namespace athanor
