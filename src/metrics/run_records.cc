#include "metrics/run_records.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

namespace athanor {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;
constexpr int64_t kMaxTextBytes = int64_t{64} << 20;
constexpr size_t kMaxLine = size_t{1} << 20;  // far above any record; bounds memory if a file is corrupt

// Reads a number, or the value of a non-finite one ("loss": null, "loss_nonfinite": "nan").
double number_of(const Json& object, const Json& value, std::string_view name) {
  if (value.is_number()) return value.get<double>();
  const auto word = object.find(cat(name, "_nonfinite"));
  if (word == object.end() || !word->is_string()) return kUnknown;
  if (*word == "inf") return std::numeric_limits<double>::infinity();
  return *word == "-inf" ? -std::numeric_limits<double>::infinity() : kUnknown;
}

std::optional<int64_t> integer_of(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max()))
    return std::nullopt;
  return value.get<int64_t>();
}

// Parses a record. A field of the wrong type keeps its default, so that as much of a log as possible is read.
template <class Record>
Record record_of(const Json& object, std::span<const RecordField<Record>> fields) {
  Record record{};
  for (const auto& field : fields) {
    const auto found = object.find(std::string(field.name));
    if (found == object.end()) continue;
    const Json& value = *found;
    std::visit(
        [&]<class T>(T Record::*member) {
          if constexpr (std::is_same_v<T, std::string>) {
            if (value.is_string()) record.*member = value.get<std::string>();
          } else if constexpr (std::is_same_v<T, bool>) {
            if (value.is_boolean()) record.*member = value.get<bool>();
          } else if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>) {
            record.*member = number_of(object, value, field.name);
          } else if constexpr (std::is_same_v<T, NamedValues>) {
            for (const auto& [key, number] : value.items())
              if (value.is_object()) (record.*member).emplace_back(key, number_of(value, number, key));
          } else if constexpr (std::is_same_v<T, uint64_t>) {
            if (value.is_number_unsigned()) record.*member = value.get<uint64_t>();
          } else {
            if (const auto number = integer_of(value)) record.*member = *number;
          }
        },
        field.member);
  }
  return record;
}

void drop_superseded(RunRecords& run, int64_t from) {
  std::erase_if(run.steps, [&](const StepMetrics& m) { return m.step >= from; });
  std::erase_if(run.evals, [&](const EvalMetrics& m) { return m.step >= from; });
  std::erase_if(run.quantized, [&](const QuantizedMetrics& m) { return m.step >= from; });
  std::erase_if(run.routing, [&](const RoutingMetrics& m) { return m.step >= from; });
  std::erase_if(run.pruned, [&](const PrunedMetrics& m) { return m.step >= from; });
}

void flatten(const Json& value, const std::string& path, std::vector<std::pair<std::string, std::string>>& out) {
  if (!value.is_object() || value.empty()) {
    out.emplace_back(path, value.is_string() ? value.get<std::string>() : json_text(value));
    return;
  }
  for (const auto& [key, child] : value.items()) flatten(child, path.empty() ? key : cat(path, ".", key), out);
}

// Reads a JSON file of the folder, flattened to keys and values; empty if the file is missing or damaged.
std::vector<std::pair<std::string, std::string>> read_object(const fs::path& path) {
  std::vector<std::pair<std::string, std::string>> lines;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return lines;
  const Json json = Json::parse(read_file(path.string(), kMaxTextBytes), nullptr, false);
  if (json.is_object()) flatten(json, "", lines);
  return lines;
}

}  // namespace

bool parse_record(std::string_view line, RunRecords& into) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return false;
  const auto event = json.find("event");
  if (event == json.end() || !event->is_string()) return false;
  const auto step = json.find("step");
  if (step == json.end() || integer_of(*step).value_or(-1) < 0) return false;
  const auto& name = event->get_ref<const std::string&>();
  if (name == "step") {
    const auto m = record_of<StepMetrics>(json, step_fields());
    if (!into.steps.empty() && into.steps.back().step >= m.step) drop_superseded(into, m.step);
    into.steps.push_back(m);
    return true;
  }
  if (name == "eval") {
    auto m = record_of<EvalMetrics>(json, eval_fields());
    std::erase_if(into.evals, [&](const EvalMetrics& r) { return r.name == m.name && r.step >= m.step; });
    into.evals.push_back(std::move(m));
    return true;
  }
  if (name == "quantized") {
    into.quantized.push_back(record_of<QuantizedMetrics>(json, quantized_fields()));
    if (const auto former = json.find("largest"); former != json.end() && !json.contains("amax"))
      into.quantized.back().amax = number_of(json, *former, "largest");  // its name in logs of earlier versions
    return true;
  }
  if (name == "routing") {
    into.routing.push_back(record_of<RoutingMetrics>(json, routing_fields()));
    return true;
  }
  if (name == "pruned") {
    into.pruned.push_back(record_of<PrunedMetrics>(json, pruned_fields()));
    return true;
  }
  if (name == "communication") return true;  // not shown on any page
  const auto kind = event_kind(name);
  if (!kind) return false;
  EventRecord& e = into.events.emplace_back(record_of<EventRecord>(json, event_fields()));
  e.kind = *kind;
  if (e.supersedes_from && *e.supersedes_from < 0) e.supersedes_from.reset();
  if (e.supersedes_from) drop_superseded(into, *e.supersedes_from);
  return true;
}

EvalMetrics best_valid(const RunRecords& run) {
  EvalMetrics best;
  for (const EvalMetrics& e : run.evals)
    if (e.name == kAllSources && std::isfinite(e.loss) && !(e.loss >= best.loss)) best = e;
  return best;
}

void warn_of_unreadable_lines(const RunRecords& run) {
  if (run.unreadable_lines > 0)
    log::warn(run.name, ": metrics.jsonl: ", run.unreadable_lines,
              " lines are no records of a run and were left out, the first is line ", run.first_unreadable);
}

RunRecords read_run(const std::string& folder) {
  const fs::path dir = fs::path(folder), path = dir / "metrics.jsonl";
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored))
    throw Error(cat(folder,
                    ": is no folder of a run: there is no metrics.jsonl in it (`save` of a config names the folder; "
                    "logging.jsonl must not be false)"),
                Exit::usage);
  RunRecords run;
  run.name = fs::absolute(dir).lexically_normal().filename().string();
  if (run.name.empty()) run.name = fs::absolute(dir).lexically_normal().parent_path().filename().string();
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(cat(path.string(), ": cannot be opened"));
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const bool torn = in.eof();  // no newline: the line is still being written, or the run died
    if (line.empty() || (torn && line.back() != '}')) continue;
    if ((line.size() <= kMaxLine && parse_record(line, run)) || torn) continue;
    if (run.unreadable_lines++ == 0) run.first_unreadable = number;
  }
  run.config = read_object(dir / "config.resolved.json");
  run.environment = read_object(dir / "environment.json");
  return run;
}

}  // namespace athanor
