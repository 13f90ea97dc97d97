// athanor sweep CONFIG --set key=value,value... --widths n,n...: trains every combination as a separate run, and ends
// with a table and a page; also muP's coordinate check.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "command/child.h"
#include "command/command.h"
#include "command/machine.h"
#include "command/sweep_charts.h"
#include "data/loader.h"
#include "infer/evaluate.h"
#include "plan/sweep_runs.h"
#include "report/html_report.h"
#include "train/setup.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

namespace fs = std::filesystem;

struct SweepArgs {
  std::string config, folder, widths;
  std::vector<std::string> sets, sbatch;
  bool slurm = false, summary = false, coordinates = false;
  int64_t steps = 5;
  double limit = 1.3;
};

// Current state of a run.
struct Outcome {
  const SweepRun* run;
  std::optional<RunRecords> records;
  int code = -1;  // -1: not run by this command

  bool done() const { return records && records->ended() && records->events.back().text.starts_with("done"); }
  double loss() const { return records && !records->steps.empty() ? records->steps.back().loss : kUnknown; }
  double best_valid() const { return records ? athanor::best_valid(*records).loss : kUnknown; }
  double rank() const {
    const double value = std::isfinite(best_valid()) ? best_valid() : loss();
    return std::isfinite(value) ? value : INFINITY;
  }
};

std::string folder_of(const SweepArgs& args, const SweepRun& run) { return cat(args.folder, "/", run.name); }

std::string log_of(const SweepArgs& args, const SweepRun& run) { return cat(args.folder, "/", run.name, ".log"); }

void look(const SweepArgs& args, Outcome& outcome) {
  const std::string folder = folder_of(args, *outcome.run);
  if (fs::is_regular_file(folder + "/metrics.jsonl")) {
    outcome.records = read_run(folder);
    warn_of_unreadable_lines(*outcome.records);
  }
}

// Validates the config of every combination before the first one runs, and returns them.
std::vector<Config> configs_of(const SweepArgs& args, std::span<const SweepRun> runs) {
  std::vector<Config> all;
  for (const SweepRun& run : runs)
    all.push_back(with_context(cat("sweep: run ", run.name), [&] { return load_config(args.config, run.overrides); }));
  return all;
}

// Claims the folder for this sweep: runs with other values must not be mixed with the runs in it.
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
    const auto number = [](double v) { return std::isfinite(v) ? format_text("%.4f", v) : "-"; };
    const bool ran = o.records && !o.records->steps.empty();
    std::printf("%-10s %-10s %-8s %-10s %-24s %s\n", number(o.best_valid()).c_str(), number(o.loss()).c_str(),
                ran ? cat(o.records->steps.back().step).c_str() : "-",
                ran ? format_count(o.records->steps.back().tokens_per_second).c_str() : "-", state_of(o).c_str(),
                o.run->name.c_str());
  }
}

void write_page(const SweepArgs& args, const std::vector<Outcome>& all, std::vector<Chart> charts) {
  std::vector<RunRecords> runs;
  std::vector<RunLoss> losses;
  for (const Outcome& o : all)
    if (o.records) {
      runs.push_back(*o.records);
      losses.push_back({o.run, o.done() ? o.rank() : kUnknown});
    }
  if (runs.empty()) return;
  if (!args.coordinates) charts.insert(charts.begin(), chart_of_losses(losses));
  const std::string path = args.folder + "/report.html";
  write_file(path, html_report(runs, {.title = cat("Sweep of ", args.config), .charts = std::move(charts)}));
  print("\n", path, "\n");
}

// Turns the runs into short ones at a constant learning rate, without features that only long runs need; these
// overrides come last, so that nothing changes them.
void make_short(const SweepArgs& args, std::vector<SweepRun>& runs) {
  for (SweepRun& run : runs)
    run.overrides.insert(run.overrides.end(),
                         {"train_tokens=0", cat("train_iters=", args.steps), "schedule.lr_decay_style=constant",
                          "schedule.lr_warmup_iters=0", "schedule.lr_warmup_init=0", "schedule.momentum_warmup_iters=0",
                          "eval_interval=0", "stop_at_loss=0"});
}

// Activation sizes of a finished run, in fp32, on the first samples of its data.
std::vector<ActivationSize> sizes_of(const SweepArgs& args, const SweepRun& run) {
  constexpr int64_t kMostSequences = 8;
  const ModelFolder folder(folder_of(args, run));
  Config config = load_config(args.config, run.overrides);
  config.model = folder.config();
  config.precision = Precision::fp32;
  config.micro_batch_size = config.global_batch_size = std::min(config.global_batch_size, kMostSequences);
  const Dataset data = open_training_data(config);
  Loader loader(data, {.order = {.seed = uint64_t(config.seed)},
                       .rows = config.micro_batch_size,
                       .packing = packing_options(config, data)});
  Machine machine(config);
  const Backend backend = machine.backend();
  Engine engine(config.model, engine_options(config, false), backend);
  engine.memory().require_fits(memory_capacity(config, backend.device), runtime_reserve(config, backend.device));
  engine.commit();
  load_weights(engine, backend.device, folder);
  const HostBatch& batch = loader.next();
  set_documents(engine, batch);
  engine.set_pixels(batch.pixels);
  return activation_sizes(engine, backend, batch.tokens, batch.targets);
}

// The groups of finished runs that differ only in width.
std::vector<WidthGroup> measure(const SweepArgs& args, const std::vector<Outcome>& all) {
  std::vector<WidthGroup> groups;
  for (const Outcome& o : all) {  // widths come first, so the runs of a group are in order of width
    if (!o.done()) continue;
    const std::string others = others_than(*o.run, 0);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const WidthGroup& g) { return g.others == others; });
    if (group == groups.end()) group = groups.insert(groups.end(), {.others = others, .widths = {}, .sizes = {}});
    group->widths.push_back(o.run->values[0].value);
    group->sizes.push_back(sizes_of(args, *o.run));
  }
  return groups;
}

// Returns Exit::error if an activation's size varies by more than the limit over the widths.
Exit check_coordinates(const SweepArgs& args, std::span<const WidthGroup> groups) {
  Exit end = Exit::done;
  for (const WidthGroup& group : groups) {
    print(coordinate_table(group));
    size_t worst = 0;
    for (size_t i = 1; i < group.sizes.front().size(); ++i)
      if (spread(group.sizes, i) > spread(group.sizes, worst)) worst = i;
    const double ratio = spread(group.sizes, worst);
    std::printf("largest ratio %.3f: %s (limit %g)\n", ratio, group.sizes.front()[worst].name.c_str(), args.limit);
    if (!(ratio <= args.limit)) end = Exit::error;
  }
  write_file(args.folder + "/coordinates.json", coordinate_json(groups, args.steps, args.limit));
  return end;
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
                                        cat("save=", folder_of(args, *o.run))};
    for (const std::string& text : o.run->overrides) command.insert(command.end(), {"--set", text});
    await_free_run(folder_of(args, *o.run));
    const ChildEnd end = run_child(command, log_of(args, *o.run));
    look(args, o);
    if (end.stopped) {
      log::info("sweep: stopped in ", o.run->name, "; the same command resumes");
      return Exit::requeue;
    }
    o.code = end.code == int(Exit::requeue) ? -1 : end.code;  // stopped by its own time limit, which is no failure
    if (o.code > 0)
      log::error("sweep: ", o.run->name, " failed with exit code ", end.code, "; its output is in ",
                 log_of(args, *o.run), "; the other runs continue");
  }
  return Exit::done;
}

Exit sweep(const SweepArgs& args) {
  if (args.config == "-")
    throw Error("sweep: expected a configuration file, which every run reads; got -", Exit::usage);
  if (args.sets.empty() && args.widths.empty())
    throw Error("sweep: expected values of --set or --widths, got none", Exit::usage);
  const std::vector<Width> widths =
      args.widths.empty() ? std::vector<Width>() : plan_widths(args.widths, load_config(args.config, {}).model);
  if (args.coordinates && widths.size() < 2)
    throw Error("--coordinate-check: expected two widths or more, as --widths 64,128,256", Exit::usage);
  std::vector<SweepRun> runs = plan_sweep(args.sets, widths);
  if (args.coordinates) make_short(args, runs);
  const std::vector<Config> configs = configs_of(args, runs);
  claim_folder(args, runs);
  if (!args.summary)
    for (size_t i = 0; i < runs.size(); ++i) require_same_values(folder_of(args, runs[i]), configs[i]);
  if (args.slurm) {
    const std::string script = args.folder + "/sweep.sbatch";
    write_file(script, slurm_script({.program = own_program(),
                                     .config = fs::absolute(args.config).string(),
                                     .folder = fs::absolute(args.folder).string(),
                                     .directory = fs::current_path().string(),
                                     .options = args.sbatch},
                                    runs));
    print(runs.size(), " runs: sbatch ", script, "\n");
    return Exit::done;
  }
  std::vector<Outcome> all;
  for (const SweepRun& run : runs) {
    all.push_back({.run = &run, .records = std::nullopt});
    look(args, all.back());
  }
  const Exit end = args.summary ? Exit::done : run_all(args, all);
  print_table(all);
  const std::vector<WidthGroup> groups = args.coordinates ? measure(args, all) : std::vector<WidthGroup>();
  const Exit checked = args.coordinates ? check_coordinates(args, groups) : Exit::done;
  std::vector<Chart> charts;
  for (const WidthGroup& group : groups) charts.push_back(chart_of_sizes(group));
  write_page(args, all, std::move(charts));
  if (end != Exit::done) return end;
  const bool failed = std::any_of(all.begin(), all.end(), [](const Outcome& o) { return o.code > 0; });
  return failed ? Exit::error : checked;
}

}  // namespace

void add_sweep(Cli& cli) {
  auto args = std::make_shared<SweepArgs>();
  Verb verb = cli.app.add_verb("sweep", "train every combination of given option values, one after another");
  verb.footer(
      "Each run has its folder and its log in --output, with sweep.json and report.html. Started again, a sweep goes "
      "on: "
      "runs that are done stay, others resume. A run that fails is named and the others go on; then the exit code is "
      "1.");
  verb.add_option("config", args->config, "configuration file").required();
  verb.add_option("--set", args->sets,
                  "values of a key: learning_rate=1e-3,2e-3 (may repeat; all combinations are run)")
      .one_value();
  verb.add_option("--widths", args->widths,
                  "values of hidden_size, such as 64,128,256; intermediate_size and heads scale with it");
  verb.add_option("-o,--output", args->folder, "folder of the sweep").required();
  verb.add_flag("--summary", args->summary, "run nothing: table and report of the existing runs");
  verb.add_flag("--coordinate-check", args->coordinates,
                "muP coordinate check: train a few steps of each width at a constant rate and compare activation "
                "sizes; exit code 1 beyond --limit")
      .needs("--widths");
  verb.add_option("--steps", args->steps, "steps of the coordinate check")
      .show_default()
      .check(positive())
      .needs("--coordinate-check");
  verb.add_option("--limit", args->limit, "coordinate check: maximum ratio of activation sizes between widths")
      .show_default()
      .check(in_range(1.0, 1e9))
      .needs("--coordinate-check");
  verb.add_flag("--slurm", args->slurm, "write sweep.sbatch, a job array with one task per run, and run nothing");
  verb.add_option("--sbatch", args->sbatch,
                  "extra sbatch option for the script, such as --sbatch=--time=04:00:00 (may repeat)")
      .one_value()
      .needs("--slurm");
  verb.on_chosen([&cli, args] { cli.action = [args] { return sweep(*args); }; });
}

}  // namespace athanor
