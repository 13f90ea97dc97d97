#include "plan/search.h"

#include <algorithm>
#include <variant>

#include "base/error.h"
#include "cpu/thread_pool.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr int kMostSearchedContext = 64;

void try_all(SearchResult& found, const Config& config, const Cluster& on, const std::vector<Candidate>& candidates) {
  std::vector<std::variant<PlannedCandidate, std::string>> answers(candidates.size());
  ThreadPool().parallel_for(int64_t(candidates.size()), [&](int64_t i) {
    try {
      Config c = configured_as(config, candidates[size_t(i)]);
      validate(c);
      const RankPlan plan(c, on);
      answers[size_t(i)] = PlannedCandidate{candidates[size_t(i)], plan.expected(), plan.with({}).step()};
    } catch (const Error& e) {
      const std::string why = e.what();
      answers[size_t(i)] = why.substr(0, why.find('\n'));
    }
  });
  for (size_t i = 0; i < candidates.size(); ++i)
    if (const auto* tried = std::get_if<PlannedCandidate>(&answers[i]))
      found.possible.push_back(*tried);
    else
      found.refused[std::get<std::string>(answers[i])].push_back(candidates[i]);
  found.tried += candidates.size();
  std::ranges::stable_sort(found.possible, [](const PlannedCandidate& a, const PlannedCandidate& b) {
    return a.p.step() != b.p.step() ? a.p.step() < b.p.step() : a.p.memory < b.p.memory;
  });
}

}  // namespace

std::string keys_of(const Candidate& w) {
  return cat("zero_stage ", w.stage, w.copies > 1 ? cat(", data_parallel_replicate_size ", w.copies) : "",
             w.tensor > 1 ? cat(", tensor_parallel_size ", w.tensor, " with sequence_parallel") : "",
             w.context > 1 ? cat(", context_parallel_size ", w.context) : "",
             w.pipeline > 1 ? cat(", pipeline_parallel_size ", w.pipeline, " with ", name_of(w.schedule)) : "");
}

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
    for (int stages = 2; stages <= kMostSearchedStages && stages <= c.model.num_hidden_layers; stages *= 2)
      if (on.ranks % (tensor * stages) == 0 && batch % (on.ranks / (tensor * stages)) == 0)
        add({1, copies_are_workers(c) ? int(c.data_parallel_replicate_size) : 1, 1, tensor, stages});
  }
  return all;
}

Config configured_exactly_as(const Config& config, const PlannedCandidate& best) {
  Config c = configured_as(config, best.way);
  c.micro_batch_size = best.p.micro_batch_size;
  validate(c);
  return c;
}

SearchResult search(const Config& config, const Cluster& on) {
  SearchResult found;
  try_all(found, config, on, search_candidates(config, on));
  const auto pipeline =
      std::ranges::find_if(found.possible, [](const PlannedCandidate& f) { return f.way.pipeline > 1; });
  if (pipeline == found.possible.end()) return found;
  std::vector<Candidate> schedules;
  for (const PipelineSchedule s : {PipelineSchedule::interleaved, PipelineSchedule::zb1p, PipelineSchedule::zbv}) {
    schedules.push_back(pipeline->way);
    schedules.back().schedule = s;
  }
  try_all(found, config, on, schedules);
  return found;
}

std::vector<std::pair<std::string, PlannedCandidate>> other_choices(std::span<const PlannedCandidate> all) {
  const Candidate& best = all.front().way;
  std::vector<std::pair<std::string, PlannedCandidate>> others;
  const auto add = [&](const char* key, const auto& value_of) {
    for (const PlannedCandidate& f : all)
      if (value_of(f.way) != value_of(best)) return void(others.emplace_back(key, f));
  };
  add("zero_stage", [](const Candidate& w) { return w.stage; });
  add("data_parallel_replicate_size", [](const Candidate& w) { return w.copies; });
  add("tensor_parallel_size", [](const Candidate& w) { return w.tensor; });
  add("context_parallel_size", [](const Candidate& w) { return w.context; });
  add("pipeline_parallel_size", [](const Candidate& w) { return w.pipeline; });
  return others;
}

}  // namespace athanor
