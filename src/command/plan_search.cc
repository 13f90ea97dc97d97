#include "command/plan_search.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <variant>

#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "command/plan_changes.h"
#include "command/plan_forecast.h"
#include "command/quiet_log.h"
#include "cpu/thread_pool.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr size_t kShown = 5;
constexpr int kMostSearchedContext = 64, kMostStages = 16;

struct Tried {
  Candidate way;
  Prediction p;      // expected step
  double bound = 0;  // seconds of the step at ideal rates
};

// Result of a search: the possible candidates, shortest expected step first, and the reasons why others are not.
struct Ways {
  std::vector<Tried> all;
  std::map<std::string, std::vector<Candidate>> refused;
  size_t tried = 0;
};

std::string keys_of(const Candidate& w) {
  return cat("zero_stage ", w.stage, w.copies > 1 ? cat(", data_parallel_replicate_size ", w.copies) : "",
             w.tensor > 1 ? cat(", tensor_parallel_size ", w.tensor, " with sequence_parallel") : "",
             w.context > 1 ? cat(", context_parallel_size ", w.context) : "",
             w.pipeline > 1 ? cat(", pipeline_parallel_size ", w.pipeline, " with ", name_of(w.schedule)) : "");
}

std::string pipeline_text(const Candidate& w) {
  return w.pipeline == 1 ? "-" : cat(w.pipeline, " ", name_of(w.schedule));
}

void try_all(Ways& found, const Config& config, const Cluster& on, const std::vector<Candidate>& candidates) {
  std::vector<std::variant<Tried, std::string>> answers(candidates.size());
  ThreadPool().parallel_for(int64_t(candidates.size()), [&](int64_t i) {
    try {
      Config c = configured_as(config, candidates[size_t(i)]);
      validate(c);
      const RankPlan plan(c, on);
      answers[size_t(i)] = Tried{candidates[size_t(i)], plan.expected(), plan.with({}).step()};
    } catch (const Error& e) {
      const std::string why = e.what();
      answers[size_t(i)] = why.substr(0, why.find('\n'));
    }
  });
  for (size_t i = 0; i < candidates.size(); ++i)
    if (const auto* tried = std::get_if<Tried>(&answers[i]))
      found.all.push_back(*tried);
    else
      found.refused[std::get<std::string>(answers[i])].push_back(candidates[i]);
  found.tried += candidates.size();
  std::ranges::stable_sort(found.all, [](const Tried& a, const Tried& b) {
    return a.p.step() != b.p.step() ? a.p.step() < b.p.step() : a.p.memory < b.p.memory;
  });
}

// Tries all candidates, and the other schedules for the best pipeline.
Ways search(const Config& config, const Cluster& on) {
  Ways found;
  try_all(found, config, on, search_candidates(config, on));
  const auto pipeline = std::ranges::find_if(found.all, [](const Tried& f) { return f.way.pipeline > 1; });
  if (pipeline == found.all.end()) return found;
  std::vector<Candidate> schedules;
  for (const PipelineSchedule s : {PipelineSchedule::interleaved, PipelineSchedule::zb1p, PipelineSchedule::zbv}) {
    schedules.push_back(pipeline->way);
    schedules.back().schedule = s;
  }
  try_all(found, config, on, schedules);
  return found;
}

void print_found(const Config& c, const Cluster& on, const std::vector<Tried>& all, double price) {
  std::printf("%5s %6s %7s %6s %14s %11s %10s %10s %9s %9s %9s %9s %10s %6s %10s %10s  %s\n", "stage", "copies",
              "context", "tensor", "pipeline", "micro", "memory", "micros ms", "update ms", "waits ms", "step ms",
              "bound ms", "tokens/s", "MFU", "GPU h / 1B", "cost / 1B", "recomputed");
  for (size_t i = 0; i < std::min(kShown, all.size()); ++i) {
    const auto& [w, p, bound] = all[i];
    const Economy e = economy_of(c, on, p.step(), p);
    char cost[32] = "-";
    if (price > 0) std::snprintf(cost, sizeof cost, "%.2f", e.gpu_hours * price);
    std::printf("%5d %6d %7d %6d %14s %5lld x %-4lld %9s %10.2f %9.2f %9.2f %9.2f %9.2f %10s %5.1f%% %10.2f %10s  %s\n",
                w.stage, w.copies, w.context, w.tensor, pipeline_text(w).c_str(),
                static_cast<long long>(p.micro_batch_size), static_cast<long long>(p.micro_batches),
                format_bytes(p.memory).c_str(), (p.compute - p.update) * 1e3, p.update * 1e3, p.exposed * 1e3,
                p.step() * 1e3, bound * 1e3, format_count(e.tokens_per_second).c_str(), 100 * e.mfu, e.gpu_hours, cost,
                to_text(p.recompute).c_str());
  }
}

void print_memory(const std::vector<Tried>& all) {
  std::printf("\nmemory of a rank\n%5s %6s %7s %6s %14s", "stage", "copies", "context", "tensor", "pipeline");
  std::vector<size_t> kinds;
  for (size_t k = 0; k < size_t(kMemoryKinds); ++k)
    if (std::ranges::any_of(all, [&](const Tried& f) { return f.p.memory_by_kind[k] > 0; })) kinds.push_back(k);
  for (const size_t k : kinds) std::printf(" %12s", name_of(MemoryKind(k)));
  for (size_t i = 0; i < std::min(kShown, all.size()); ++i) {
    const auto& [w, p, bound] = all[i];
    std::printf("\n%5d %6d %7d %6d %14s", w.stage, w.copies, w.context, w.tensor, pipeline_text(w).c_str());
    for (const size_t k : kinds) std::printf(" %12s", format_bytes(p.memory_by_kind[k]).c_str());
  }
  std::printf("\n");
}

}  // namespace

Config configured_as(const Config& config, const Candidate& w) {
  Config c = config;
  c.zero_stage = w.stage;
  c.tensor_parallel_size = w.tensor, c.context_parallel_size = w.context;
  c.sequence_parallel = w.tensor > 1;
  c.pipeline_parallel_size = w.pipeline, c.pipeline_schedule = w.schedule;
  c.virtual_pipeline_size = 0;  // 0: as the schedule requires
  c.pipeline_layout.clear();
  if (!copies_are_workers(c)) c.data_parallel_replicate_size = w.copies;
  c.data_parallel_shard_size = 0;
  c.micro_batch_size = c.gradient_accumulation_steps = 0;
  c.recompute_granularity = RecomputeGranularity::none;  // a run recomputes more if memory requires it
  return c;
}

// Tries the smallest context-parallel size that leaves one sequence per data-parallel rank, and the next one, since
// ranks with different sequences send less.
std::vector<Candidate> search_candidates(const Config& c, const Cluster& on) {
  std::vector<Candidate> all;
  const int64_t batch = common_batch_size(c);
  const auto add = [&](const Candidate& w) {
    if (std::ranges::find(all, w) == all.end()) all.push_back(w);
  };
  for (int tensor = 1; tensor <= on.ranks / on.nodes; tensor *= 2) {
    if (!on.network.within_machines(tensor, 1) || on.ranks % tensor != 0) continue;
    int tried = 0;
    for (int context = 1; context <= kMostSearchedContext && tried < 2; context *= 2) {
      const int together = tensor * context;
      if (on.ranks % together != 0 || c.seq_length % (2 * context) != 0) break;
      const int groups = on.ranks / together;
      if (batch % groups != 0) continue;
      ++tried;
      for (const int stage : {1, 2, 3})
        for (const int copies : {1, on.nodes})
          if (groups % copies == 0)
            add({stage, copies_are_workers(c) ? int(c.data_parallel_replicate_size) : copies, context, tensor});
    }
    for (int stages = 2; stages <= kMostStages && stages <= c.model.num_hidden_layers; stages *= 2)
      if (on.ranks % (tensor * stages) == 0 && batch % (on.ranks / (tensor * stages)) == 0)
        add({1, copies_are_workers(c) ? int(c.data_parallel_replicate_size) : 1, 1, tensor, stages});
  }
  return all;
}

namespace {

using Json = nlohmann::ordered_json;

// For each choice, the best candidate with another value of it.
std::vector<std::pair<std::string, Tried>> other_choices(const std::vector<Tried>& all) {
  const Candidate& best = all.front().way;
  std::vector<std::pair<std::string, Tried>> others;
  const auto add = [&](const char* key, const auto& value_of) {
    for (const Tried& f : all)
      if (value_of(f.way) != value_of(best)) return void(others.emplace_back(key, f));
  };
  add("zero_stage", [](const Candidate& w) { return w.stage; });
  add("data_parallel_replicate_size", [](const Candidate& w) { return w.copies; });
  add("tensor_parallel_size", [](const Candidate& w) { return w.tensor; });
  add("context_parallel_size", [](const Candidate& w) { return w.context; });
  add("pipeline_parallel_size", [](const Candidate& w) { return w.pipeline; });
  return others;
}

Config configured_exactly_as(const Config& config, const Tried& best) {
  Config c = configured_as(config, best.way);
  c.micro_batch_size = best.p.micro_batch_size;
  validate(c);
  return c;
}

void print_text(const Config& config, const Cluster& on, const Ways& found, double price) {
  const std::vector<Tried>& all = found.all;
  for (const auto& [why, which] : found.refused)
    std::printf("not possible: %s%s: %s\n", keys_of(which[0]).c_str(),
                which.size() == 1 ? "" : cat(" and ", which.size() - 1, " more").c_str(), why.c_str());
  std::printf(
      "%d of %zu ways are possible: zero_stage 1 to 3, one copy or one per node, tensor_parallel_size within a "
      "node, context_parallel_size where the batch needs it, pipeline_parallel_size up to %d; micro-batch and "
      "recomputation as a run chooses them; the fastest, as expected, beside the bound that no step beats:\n\n",
      int(all.size()), found.tried, kMostStages);
  print_found(config, on, all, price);
  print_memory(all);
  std::printf("\n");
  std::string of_best;
  for (size_t i = 0; i < std::min(kShown, all.size()); ++i) {
    const Prediction& p = all[i].p;
    const Config c = configured_exactly_as(config, all[i]);
    const Forecast f = forecast(RankPlan(c, on));
    const std::vector<Change> changes = changes_of(c, on, p);
    std::printf("%s: %s; bound by %s; between %s and %s; one change: %s\n", i == 0 ? "best" : "next",
                keys_of(all[i].way).c_str(), binding(p).c_str(), format_duration(f.fastest).c_str(),
                format_duration(f.slowest).c_str(), best_of(changes, p).c_str());
    if (i == 0) of_best = cat(to_text(changes, p), "\n", to_text(f));
  }
  const double step = all.front().p.step();
  std::printf("\nbest with another choice\n");
  for (const auto& [key, other] : other_choices(all))
    std::printf("  another %-29s %s: %+.1f %% step time\n", key.c_str(), keys_of(other.way).c_str(),
                100 * (other.p.step() / step - 1));
  std::printf("\nbest with one change\n%s", of_best.c_str());
}

void print_json(const Config& config, const Cluster& on, const Ways& found, double price) {
  const auto described = [&](const Tried& f) {
    const Config c = configured_exactly_as(config, f);
    Json json = Json::parse(to_json(config, on, forecast(RankPlan(c, on))));
    json["keys"] = keys_of(f.way);
    json["one_change"] = Json::parse(to_json(changes_of(c, on, f.p), f.p));
    if (price > 0) json["cost_per_billion_tokens"] = price * economy_of(config, on, f.p.step(), f.p).gpu_hours;
    return json;
  };
  Json ways = Json::array(), others = Json::array(), refused = Json::array();
  for (size_t i = 0; i < std::min(kShown, found.all.size()); ++i) ways.push_back(described(found.all[i]));
  for (const auto& [key, other] : other_choices(found.all))
    others.push_back({{"another", key}, {"keys", keys_of(other.way)}, {"expected_seconds", other.p.step()}});
  for (const auto& [why, which] : found.refused)
    for (const Candidate& w : which) refused.push_back({{"keys", keys_of(w)}, {"why", why}});
  std::printf("%s\n", json_text(Json{{"tried", found.tried},
                                     {"possible", found.all.size()},
                                     {"fastest", ways},
                                     {"another_choice", others},
                                     {"not_possible", refused}},
                                1)
                          .c_str());
}

}  // namespace

void print_search(const Config& config, const Cluster& on, const SearchArgs& args) {
  const QuietLog quiet(config.log_level);
  const Ways found = search(config, on);
  if (found.all.empty())
    throw Error(cat("plan --search: none of ", found.tried, " ways to run ", config.global_batch_size,
                    " sequences a step on ", on.ranks, " GPUs is possible",
                    found.tried == 0 ? "; take a global_batch_size that divides among them"
                                     : cat("; take more GPUs: ", found.refused.begin()->first)),
                Exit::usage);
  if (args.json)
    print_json(config, on, found, args.price);
  else
    print_text(config, on, found, args.price);
  if (args.write.empty()) return;
  write_file(args.write, dump_resolved(configured_exactly_as(config, found.all.front())));
  if (!args.json)
    std::printf("\nwrote %s: athanor plan %s --gpu ... --ranks %d, athanor train %s\n", args.write.c_str(),
                args.write.c_str(), on.ranks, args.write.c_str());
}

}  // namespace athanor
