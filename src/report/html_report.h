// Report on one or more runs: a single HTML page without external resources.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "metrics/run_records.h"
#include "report/chart.h"

namespace athanor {

struct ReportOptions {
  std::string title;               // "": names of the runs
  int refresh_seconds = 0;         // reload interval of the page; 0: never
  size_t most_events = 200;        // newest events shown per run
  std::vector<Chart> charts = {};  // additional charts in front of those of the runs
};

std::string html_report(std::span<const RunRecords> runs, const ReportOptions& options = {});

// CSS and JavaScript of the page (html_style.cc).
extern const char* const kReportStyle;
extern const char* const kReportScript;

}  // namespace athanor
