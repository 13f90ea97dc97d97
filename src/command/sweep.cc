// athanor sweep CONFIG --set key=value,value...: every combination as a run of its own, a table and a picture at the
// end.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/file.h"
#include "base/log.h"
#include "command/child.h"
#include "command/command.h"
#include "command/machine.h"
#include "command/sweep_plan.h"
#include "metrics/format.h"
#include "metrics/html_report.h"

namespace athanor {
namespace {

namespace fs = std::filesystem;

struct SweepArgs {
  std::string config, folder;
  std::vector<std::string> sets, sbatch;
  bool slurm = false, summary = false;
};

// What is known of a run now.
struct Outcome {
  const SweepRun* run;
  std::optional<RunRecords> records;
  int code = -1;  // -1: not run by this command

  bool done() const { return records && records->ended() && records->events.back().text.starts_with("done"); }
  double loss() const { return records && !records->steps.empty() ? records->steps.back().loss : kUnknown; }
  double best_valid() const {
    double best = kUnknown;
    if (records)
      for (const EvalMetrics& e : records->evals)
        if (std::isfinite(e.loss) && !(e.loss >= best)) best = e.loss;
    return best;
  }
  double rank() const {
    const double value = std::isfinite(best_valid()) ? best_valid() : loss();
    return std::isfinite(value) ? value : INFINITY;
  }
};

std::string log_of(const SweepArgs& args, const SweepRun& run) { return cat(args.folder, "/", run.name, ".log"); }

void look(const SweepArgs& args, Outcome& outcome) {
  const std::string folder = cat(args.folder, "/", outcome.run->name);
  if (fs::is_regular_file(folder + "/metrics.jsonl")) {
    outcome.records = read_run(folder);
    warn_of_unreadable_lines(*outcome.records);
  }
}

// Every combination must be a config that can run, before the first one does.
void check_all(const SweepArgs& args, std::span<const SweepRun> runs) {
  for (const SweepRun& run : runs)
    with_context(cat("sweep: run ", run.name), [&] { return load_config(args.config, run.overrides); });
}

// A folder belongs to one sweep: other values would mix with what is there.
void claim_folder(const SweepArgs& args, std::span<const SweepRun> runs) {
  const std::string path = args.folder + "/sweep.json", text = sweep_json(args.config, runs);
  if (fs::exists(path)) {
    if (read_file(path, int64_t{64} << 20) != text)
      throw Error(cat(path, ": the folder belongs to a sweep of another config or other values; give another --output"),
                  Exit::usage);
    return;
  }
  make_dirs(args.folder);
  write_file(path, text);
}

std::string state_of(const Outcome& o) {
  if (o.code > 0) return cat("failed, exit code ", o.code);
  if (o.done()) return "done";
  return o.records ? "not finished" : "not run";
}

void print_table(std::vector<Outcome> all) {
  std::stable_sort(all.begin(), all.end(), [](const Outcome& a, const Outcome& b) { return a.rank() < b.rank(); });
  std::printf("\n%-10s %-10s %-8s %-10s %-24s %s\n", "best valid", "last loss", "steps", "tokens/s", "state", "run");
  for (const Outcome& o : all) {
    const auto number = [](double v) {
      char text[32];
      std::snprintf(text, sizeof text, std::isfinite(v) ? "%.4f" : "-", v);
      return std::string(text);
    };
    const bool ran = o.records && !o.records->steps.empty();
    std::printf("%-10s %-10s %-8s %-10s %-24s %s\n", number(o.best_valid()).c_str(), number(o.loss()).c_str(),
                ran ? cat(o.records->steps.back().step).c_str() : "-",
                ran ? format_count(o.records->steps.back().tokens_per_second).c_str() : "-", state_of(o).c_str(),
                o.run->name.c_str());
  }
}

void write_picture(const SweepArgs& args, const std::vector<Outcome>& all) {
  std::vector<RunRecords> runs;
  for (const Outcome& o : all)
    if (o.records) runs.push_back(*o.records);
  if (runs.empty()) return;
  const std::string path = args.folder + "/report.html";
  write_file(path, html_report(runs, {.title = cat("Sweep of ", args.config)}));
  std::printf("\n%s\n", path.c_str());
}

Exit run_all(const SweepArgs& args, std::vector<Outcome>& all) {
  for (size_t i = 0; i < all.size(); ++i) {
    Outcome& o = all[i];
    if (o.done()) {
      log::info("sweep: ", o.run->name, " is done already");
      continue;
    }
    log::info("sweep: run ", i + 1, " of ", all.size(), ": ", o.run->name);
    std::vector<std::string> command = {own_program(), "train", args.config, "--set",
                                        cat("save=", args.folder, "/", o.run->name)};
    for (const std::string& text : o.run->overrides) command.insert(command.end(), {"--set", text});
    const ChildEnd end = run_child(command, log_of(args, *o.run));
    look(args, o);
    if (end.stopped) {
      log::info("sweep: stopped in ", o.run->name, "; the same command goes on");
      return Exit::requeue;
    }
    o.code = end.code == int(Exit::requeue) ? -1 : end.code;  // stopped by its own limit of time: not a failure
    if (o.code > 0)
      log::error("sweep: ", o.run->name, " failed with exit code ", end.code, "; its output is in ",
                 log_of(args, *o.run), "; the others go on");
  }
  return Exit::done;
}

Exit sweep(const SweepArgs& args) {
  if (args.config == "-")
    throw Error("sweep: expected a configuration file, which every run reads; got -", Exit::usage);
  const std::vector<SweepRun> runs = plan_sweep(args.sets);
  check_all(args, runs);
  claim_folder(args, runs);
  if (args.slurm) {
    const std::string script = args.folder + "/sweep.sbatch";
    write_file(script, slurm_script({.program = own_program(),
                                     .config = fs::absolute(args.config).string(),
                                     .folder = fs::absolute(args.folder).string(),
                                     .directory = fs::current_path().string(),
                                     .options = args.sbatch},
                                    runs));
    std::printf("%zu runs: sbatch %s\n", runs.size(), script.c_str());
    return Exit::done;
  }
  std::vector<Outcome> all;
  for (const SweepRun& run : runs) {
    all.push_back({.run = &run, .records = std::nullopt});
    look(args, all.back());
  }
  const Exit end = args.summary ? Exit::done : run_all(args, all);
  print_table(all);
  write_picture(args, all);
  if (end != Exit::done) return end;
  const bool failed = std::any_of(all.begin(), all.end(), [](const Outcome& o) { return o.code > 0; });
  return failed ? Exit::error : Exit::done;
}

}  // namespace

void add_sweep(Cli& cli) {
  auto args = std::make_shared<SweepArgs>();
  Verb verb = cli.app.add_verb("sweep", "train every combination of some values, one after another");
  verb.footer(
      "Each run has its folder and its log in --output, with sweep.json and report.html. Started again, a sweep goes "
      "on: "
      "runs that are done stay, others resume. A run that fails is named and the others go on; then the exit code is "
      "1.");
  verb.add_option("config", args->config, "configuration file").required();
  verb.add_option("--set", args->sets,
                  "values of a key: learning_rate=1e-3,2e-3 (may repeat; all combinations are run)")
      .one_value()
      .required();
  verb.add_option("-o,--output", args->folder, "folder of the sweep").required();
  verb.add_flag("--summary", args->summary, "run nothing: table and report of the existing runs");
  verb.add_flag("--slurm", args->slurm, "run nothing: write sweep.sbatch, a job array with one task for each run");
  verb.add_option("--sbatch", args->sbatch, "an option for that script, such as --sbatch=--time=04:00:00 (may repeat)")
      .one_value()
      .needs("--slurm");
  verb.on_chosen([&cli, args] { cli.action = [args] { return sweep(*args); }; });
}

}  // namespace athanor
