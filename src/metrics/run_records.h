// Reads the output folder of a run: metrics.jsonl as the effective series (LOGS.md), configuration and environment.
// Works while the run is in progress.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "metrics/record.h"

namespace athanor {

struct RunRecords {
  std::string name;                         // name of the run folder
  std::vector<StepMetrics> steps;           // ascending; superseded ones left out
  std::vector<EvalMetrics> evals;           // in the order of the file, superseded ones left out
  std::vector<QuantizedMetrics> quantized;  // in the order of the file, superseded ones left out
  std::vector<RoutingMetrics> routing;      // in the order of the file, superseded ones left out
  std::vector<PrunedMetrics> pruned;        // in the order of the file, superseded ones left out
  std::vector<EventRecord> events;          // all of them
  int64_t unreadable_lines = 0;             // incomplete or not records; not the last line of a run in progress
  int64_t first_unreadable = 0;             // line number, from 1; 0: none
  // "a.b" and JSON, in the order of the files; empty when the file is not there.
  std::vector<std::pair<std::string, std::string>> config, environment;

  bool ended() const { return failed() || (!events.empty() && events.back().kind == EventKind::end); }
  bool failed() const { return !events.empty() && events.back().kind == EventKind::error; }
};

// The folder of a run. Error(usage) if it holds no metrics.jsonl.
RunRecords read_run(const std::string& folder);

// Logs the number of lines in metrics.jsonl that are not records, if there are any.
void warn_of_unreadable_lines(const RunRecords&);

// Parses one line of metrics.jsonl; false: not a record of this program. A step or evaluation that is there already
// supersedes it, as `supersedes_from` of an event does.
bool parse_record(std::string_view line, RunRecords& into);

}  // namespace athanor
