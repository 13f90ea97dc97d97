// Reads the output folder of a run: the effective series of metrics.jsonl (LOGS.md), configuration and environment.
// Also works while the run is in progress.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "metrics/record.h"

namespace athanor {

struct RunRecords {
  std::string name;                         // name of the run folder
  std::vector<StepMetrics> steps;           // ascending; without superseded ones
  std::vector<EvalMetrics> evals;           // in file order, without superseded ones
  std::vector<QuantizedMetrics> quantized;  // in file order, without superseded ones
  std::vector<RoutingMetrics> routing;      // in file order, without superseded ones
  std::vector<PrunedMetrics> pruned;        // in file order, without superseded ones
  std::vector<EventRecord> events;          // all events
  int64_t unreadable_lines = 0;             // incomplete or invalid lines, except the last line of a run in progress
  int64_t first_unreadable = 0;             // line number, from 1; 0: none
  // Pairs of key "a.b" and JSON value, in file order; empty if the file is missing.
  std::vector<std::pair<std::string, std::string>> config, environment;

  bool ended() const { return failed() || (!events.empty() && events.back().kind == EventKind::end); }
  bool failed() const { return !events.empty() && events.back().kind == EventKind::error; }
};

// Reads a run's folder. Throws Error(usage) if it has no metrics.jsonl.
RunRecords read_run(const std::string& folder);

// Returns the evaluation of the validation set with the lowest loss; its loss is NaN if there is none.
EvalMetrics best_valid(const RunRecords&);

// Logs the number of invalid lines of metrics.jsonl, if there are any.
void warn_of_unreadable_lines(const RunRecords&);

// Parses one line of metrics.jsonl; false: not a record of this program. A step or evaluation with the same or an
// earlier step supersedes the existing ones, like `supersedes_from` of an event.
bool parse_record(std::string_view line, RunRecords& into);

}  // namespace athanor
