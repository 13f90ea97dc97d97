// athanor report RUN...: writes one HTML page about runs; with --watch it follows them.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "command/command.h"
#include "report/html_report.h"

namespace athanor {
namespace {

struct ReportArgs {
  std::vector<std::string> runs;
  std::string output;
  bool watch = false;
  int every = 5;
};

std::string log_of(const std::string& run) { return run + "/metrics.jsonl"; }

// Sizes of the files from which the page is made; a change means that there are new records.
std::vector<int64_t> sizes(const std::vector<std::string>& runs) {
  std::vector<int64_t> all;
  for (const std::string& run : runs) {
    struct stat info {};
    all.push_back(stat(log_of(run).c_str(), &info) == 0 ? info.st_size : -1);
  }
  return all;
}

// Waits for runs that have not begun: the folder or log may be missing, as with a queued job.
void await_logs(const ReportArgs& args) {
  for (const std::string& run : args.runs) {
    struct stat info {};
    for (bool logged = false; stat(log_of(run).c_str(), &info) != 0;) {
      if (!std::exchange(logged, true)) log::info("report: waiting for ", log_of(run), ", which is not there yet");
      std::this_thread::sleep_for(std::chrono::seconds(args.every));
    }
  }
}

Exit report(const ReportArgs& args) {
  const std::string output = !args.output.empty()    ? args.output
                             : args.runs.size() == 1 ? args.runs[0] + "/report.html"
                                                     : "report.html";
  if (args.watch) await_logs(args);
  bool shown = false;
  std::vector<int64_t> logged(args.runs.size(), 0);  // number of unreadable lines reported so far
  for (;;) {
    const std::vector<int64_t> before = sizes(args.runs);
    std::vector<RunRecords> runs;
    for (size_t i = 0; i < args.runs.size(); ++i) {
      runs.push_back(read_run(args.runs[i]));
      const int64_t unreadable = runs.back().unreadable_lines;
      if (std::exchange(logged[i], unreadable) != unreadable) warn_of_unreadable_lines(runs.back());
    }
    const bool over =
        !args.watch || std::all_of(runs.begin(), runs.end(), [](const RunRecords& r) { return r.ended(); });
    write_file(output, html_report(runs, {.refresh_seconds = over ? 0 : args.every}));
    if (!std::exchange(shown, true)) {  // printed at once, so that the page can be opened while --watch continues
      print(output, "\n");
      std::fflush(stdout);
    }
    if (over) return Exit::done;
    do std::this_thread::sleep_for(std::chrono::seconds(args.every));
    while (sizes(args.runs) == before);
  }
}

}  // namespace

void add_report(Cli& cli) {
  auto args = std::make_shared<ReportArgs>();
  Verb verb = cli.app.add_verb(
      "report",
      "write an HTML report of runs: curves, step times, memory, events, config; several runs next to each other");
  verb.add_option("runs", args->runs, "run folders (`save` of their configs)").required();
  verb.add_option("-o,--output", args->output, "file to write; default: RUN/report.html, for several runs report.html");
  verb.add_flag("--watch", args->watch,
                "rewrite the report on new records until all runs have ended, including runs that have not started; "
                "the page reloads itself");
  verb.add_option("--every", args->every, "seconds between checks with --watch")
      .show_default()
      .check(in_range(1, 86400))
      .needs("--watch");
  verb.on_chosen([&cli, args] { cli.action = [args] { return report(*args); }; });
}

}  // namespace athanor
