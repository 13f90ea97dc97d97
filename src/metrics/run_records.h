// Reads back what a run wrote into its folder: metrics.jsonl as the effective series (LOGS.md), the configuration and
// the environment. A run in progress may be read at any moment.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "metrics/record.h"

namespace athanor {

struct RunRecords {
  std::string name;                 // of the folder
  std::vector<StepMetrics> steps;   // ascending; superseded ones left out
  std::vector<EvalMetrics> evals;   // in the order of the file, superseded ones left out
  std::vector<EventRecord> events;  // all of them
  int64_t unreadable_lines = 0;     // torn or foreign; the last line of a run in progress does not count
  int64_t first_unreadable = 0;     // line number, from 1; 0: none
  // "a.b" and JSON, in the order of the files; empty when the file is not there.
  std::vector<std::pair<std::string, std::string>> config, environment;

  bool ended() const { return failed() || (!events.empty() && events.back().kind == EventKind::end); }
  bool failed() const { return !events.empty() && events.back().kind == EventKind::error; }
};

// The folder of a run. Error(usage) if it holds no metrics.jsonl.
RunRecords read_run(const std::string& folder);

// A line of the log about the lines of metrics.jsonl that are no records, if there are any.
void warn_of_unreadable_lines(const RunRecords&);

// One line of metrics.jsonl into the record it is; false: no record of this program.
bool parse_record(std::string_view line, RunRecords& into);

}  // namespace athanor
