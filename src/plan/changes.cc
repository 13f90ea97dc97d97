#include "plan/search.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/json.h"
#include "cpu/thread_pool.h"
#include "train/setup.h"

namespace athanor {
namespace {

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
    add("offload.optimizer cpu", [](Config& o) { o.offload_optimizer = Offload::cpu; });
  if (c.offload_params == Offload::none && zero_stage(c) == 3 && c.data_parallel_replicate_size == 1)
    add("offload.params cpu", [](Config& o) { o.offload_params = Offload::cpu; });
  return all;
}

Change planned(const Wanted& wanted, const Config& c, const Cluster& on, const Prediction& before) {
  Change change{.keys = wanted.keys, .then = {}, .why = {}};
  try {
    Config changed = wanted.config;
    validate(changed);
    change.then = RankPlan(changed, on).expected();
  } catch (const Error& e) {
    const std::string why = e.what();
    change.why = why.substr(0, why.find('\n'));
    return change;
  }
  if (change.then->recompute.granularity == before.recompute.granularity &&
      wanted.config.recompute_granularity != c.recompute_granularity) {
    change.then.reset();
    change.why = cat("it does not fit, so that activations are recomputed as before (", to_text(before.recompute), ")");
  }
  return change;
}

double step_time(const Change& change, const Prediction& before) { return change.then->step() / before.step() - 1; }

}  // namespace

std::vector<Change> changes_of(const Config& c, const Cluster& on, const Prediction& before) {
  const std::vector<Wanted> all = wanted(c, before);
  std::vector<Change> changes(all.size());
  ThreadPool().parallel_for(int64_t(all.size()),
                            [&](int64_t i) { changes[size_t(i)] = planned(all[size_t(i)], c, on, before); });
  return changes;
}

std::string to_text(const std::vector<Change>& changes, const Prediction& before) {
  std::string out;
  for (const Change& change : changes) {
    out += format_text("  %-37s ", change.keys.c_str());
    if (!change.then) {
      out += cat("not possible: ", change.why, "\n");
      continue;
    }
    out += format_text("%+.1f %% step time, %s of memory instead of %s, micro-batch %lld x %lld, recomputed %s\n",
                       100 * step_time(change, before), format_bytes(change.then->memory).c_str(),
                       format_bytes(before.memory).c_str(), static_cast<long long>(change.then->micro_batch_size),
                       static_cast<long long>(change.then->micro_batches), to_text(change.then->recompute).c_str());
  }
  return out;
}

std::string best_of(const std::vector<Change>& changes, const Prediction& before) {
  const Change* best = nullptr;
  for (const Change& change : changes)
    if (change.then && change.then->step() < (best ? best->then->step() : before.step())) best = &change;
  if (!best) return "none makes it shorter";
  return best->keys + format_text(": %+.1f %% step time", 100 * step_time(*best, before));
}

std::string to_json(const std::vector<Change>& changes, const Prediction& before) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Change& change : changes)
    if (change.then)
      all.push_back({{"change", change.keys},
                     {"expected_seconds", change.then->step()},
                     {"step_time", step_time(change, before)},
                     {"memory_bytes", change.then->memory},
                     {"micro_batch_size", change.then->micro_batch_size},
                     {"recompute", to_text(change.then->recompute)}});
    else
      all.push_back({{"change", change.keys}, {"not_possible", change.why}});
  return json_text(all);
}

}  // namespace athanor
