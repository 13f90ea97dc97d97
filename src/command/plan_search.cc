#include "command/plan.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "command/quiet_log.h"
#include "convert/new_folder.h"
#include "plan/forecast.h"
#include "plan/search.h"

namespace athanor {
namespace {

constexpr size_t kShown = 5;

std::string pipeline_text(const Candidate& w) {
  return w.pipeline == 1 ? "-" : cat(w.pipeline, " ", name_of(w.schedule));
}

void print_found(const Config& c, const Cluster& on, const std::vector<PlannedCandidate>& all, double price) {
  std::printf("%5s %12s %4s %4s %14s %11s %10s %10s %9s %9s %9s %9s %10s %6s %10s %10s  %s\n", "zero", "dp_replicate",
              "cp", "tp", "pp", "micro", "memory", "micros ms", "update ms", "waits ms", "step ms", "bound ms",
              "tokens/s", "MFU", "GPU h / 1B", "cost / 1B", "recomputed");
  for (size_t i = 0; i < std::min(kShown, all.size()); ++i) {
    const auto& [w, p, bound] = all[i];
    const Economy e = economy_of(c, on, p.step(), p);
    const std::string cost = price > 0 ? format_text("%.2f", e.gpu_hours * price) : "-";
    std::printf(
        "%5d %12d %4d %4d %14s %5lld x %-4lld %9s %10.2f %9.2f %9.2f %9.2f %9.2f %10s %5.1f%% %10.2f %10s  %s\n",
        w.stage, w.copies, w.context, w.tensor, pipeline_text(w).c_str(), static_cast<long long>(p.micro_batch_size),
        static_cast<long long>(p.micro_batches), format_bytes(p.memory).c_str(), (p.compute - p.update) * 1e3,
        p.update * 1e3, p.exposed * 1e3, p.step() * 1e3, bound * 1e3, format_count(e.tokens_per_second).c_str(),
        100 * e.mfu, e.gpu_hours, cost.c_str(), to_text(p.recompute).c_str());
  }
}

void print_memory(const std::vector<PlannedCandidate>& all) {
  std::printf("\nmemory of a rank\n%5s %12s %4s %4s %14s", "zero", "dp_replicate", "cp", "tp", "pp");
  std::vector<size_t> kinds;
  for (size_t k = 0; k < size_t(kMemoryKinds); ++k)
    if (std::ranges::any_of(all, [&](const PlannedCandidate& f) { return f.p.memory_by_kind[k] > 0; }))
      kinds.push_back(k);
  for (const size_t k : kinds) std::printf(" %12s", name_of(MemoryKind(k)));
  for (size_t i = 0; i < std::min(kShown, all.size()); ++i) {
    const auto& [w, p, bound] = all[i];
    std::printf("\n%5d %12d %4d %4d %14s", w.stage, w.copies, w.context, w.tensor, pipeline_text(w).c_str());
    for (const size_t k : kinds) std::printf(" %12s", format_bytes(p.memory_by_kind[k]).c_str());
  }
  print("\n");
}

using Json = nlohmann::ordered_json;

void print_text(const Config& config, const Cluster& on, const SearchResult& found, double price) {
  const std::vector<PlannedCandidate>& all = found.possible;
  for (const auto& [why, which] : found.refused)
    print("not possible: ", keys_of(which[0]), which.size() == 1 ? "" : cat(" and ", which.size() - 1, " more"), ": ",
          why, "\n");
  print(int(all.size()), " of ", found.tried,
        " ways are possible: zero_stage 1 to 3, one copy or one per node, tensor_parallel_size within a node, "
        "context_parallel_size where the batch needs it, pipeline_parallel_size up to ",
        kMostSearchedStages,
        "; micro-batch and recomputation as a run chooses them; the fastest, as predicted, next to the lower bound of "
        "the step:\n\n");
  print_found(config, on, all, price);
  print_memory(all);
  print("\n");
  std::string of_best;
  for (size_t i = 0; i < std::min(kShown, all.size()); ++i) {
    const Prediction& p = all[i].p;
    const Config c = configured_exactly_as(config, all[i]);
    const Forecast f = forecast(RankPlan(c, on));
    const std::vector<Change> changes = changes_of(c, on, p);
    print(i == 0 ? "best" : "next", ": ", keys_of(all[i].way), "; bound by ", binding(p), "; between ",
          format_duration(f.fastest), " and ", format_duration(f.slowest), "; one change: ", best_of(changes, p), "\n");
    if (i == 0) of_best = cat(to_text(changes, p), "\n", to_text(f));
  }
  const double step = all.front().p.step();
  print("\nbest with another choice\n");
  for (const auto& [key, other] : other_choices(all))
    std::printf("  another %-29s %s: %+.1f %% step time\n", key.c_str(), keys_of(other.way).c_str(),
                100 * (other.p.step() / step - 1));
  print("\nbest with one change\n", of_best);
}

void print_json(const Config& config, const Cluster& on, const SearchResult& found, double price) {
  const auto described = [&](const PlannedCandidate& f) {
    const Config c = configured_exactly_as(config, f);
    Json json = Json::parse(to_json(config, on, forecast(RankPlan(c, on))));
    json["keys"] = keys_of(f.way);
    json["one_change"] = Json::parse(to_json(changes_of(c, on, f.p), f.p));
    if (price > 0) json["cost_per_billion_tokens"] = price * economy_of(config, on, f.p.step(), f.p).gpu_hours;
    return json;
  };
  Json ways = Json::array(), others = Json::array(), refused = Json::array();
  for (size_t i = 0; i < std::min(kShown, found.possible.size()); ++i) ways.push_back(described(found.possible[i]));
  for (const auto& [key, other] : other_choices(found.possible))
    others.push_back({{"another", key}, {"keys", keys_of(other.way)}, {"expected_seconds", other.p.step()}});
  for (const auto& [why, which] : found.refused)
    for (const Candidate& w : which) refused.push_back({{"keys", keys_of(w)}, {"why", why}});
  print(json_text(Json{{"tried", found.tried},
                       {"possible", found.possible.size()},
                       {"fastest", ways},
                       {"another_choice", others},
                       {"not_possible", refused}},
                  1),
        "\n");
}

}  // namespace

void print_search(const Config& config, const Cluster& on, const SearchArgs& args) {
  const QuietLog quiet(config.log_level);
  std::optional<AtomicFile> file;
  if (!args.write.empty()) {  // before the search, so that a wrong path fails at once
    require_new_path(args.write);
    file.emplace(args.write);
  }
  const SearchResult found = search(config, on);
  if (found.possible.empty())
    throw Error(cat("plan --search: none of ", found.tried, " ways to run ", config.global_batch_size,
                    " sequences a step on ", on.ranks, " GPUs is possible",
                    found.tried == 0 ? "; take a global_batch_size that divides among them"
                                     : cat("; take more GPUs: ", found.refused.begin()->first)),
                Exit::usage);
  if (args.json)
    print_json(config, on, found, args.price);
  else
    print_text(config, on, found, args.price);
  if (!file) return;
  file->out().write(dump_resolved(configured_exactly_as(config, found.possible.front())));
  file->commit();
  if (!args.json)
    print("\nwrote ", args.write, ": athanor plan ", args.write, " --gpu ... --ranks ", on.ranks, ", athanor train ",
          args.write, "\n");
}

}  // namespace athanor
