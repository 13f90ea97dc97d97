// athanor lr-find CONFIG: a short run whose learning rate grows by a constant factor per step; prints the suggested
// learning rate.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "analysis/lr_finder.h"
#include "base/file.h"
#include "command/command.h"
#include "command/machine.h"
#include "metrics/jsonl.h"
#include "report/html_report.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace athanor {
namespace {

struct LrFindArgs {
  std::string config, output;
  std::vector<std::string> overrides;
  double from = 1e-8, to = 1;  // as in PyTorch Lightning's lr_find
  int64_t steps = 100;
};

// Overrides that turn a run into a range test; they come last, so that neither the file nor --set changes them.
std::vector<std::string> as_lr_find(const LrFindArgs& args) {
  std::vector<std::string> all = args.overrides;
  all.insert(all.end(), {"save=",
                         "load=none",
                         "load_step=-1",
                         "pruning.start=0",
                         "pruning.end=0",
                         "schedule.lr_decay_style=exponential",
                         cat("schedule.lr_warmup_init=", args.from),
                         cat("learning_rate=", args.to),
                         "schedule.min_lr=0",
                         "schedule.lr_warmup_iters=0",
                         "schedule.lr_wsd_decay_iters=0",
                         "train_tokens=0",
                         cat("train_iters=", args.steps),
                         cat("schedule.lr_decay_iters=", args.steps),
                         "schedule.momentum_warmup_iters=0",
                         "eval_interval=0",
                         "stop_at_loss=0",
                         "loss_spikes.zscore=0",
                         "loss_spikes.rollback=false",
                         "profile="});
  return all;
}

// Writes the records of a run, for `athanor report`, and its HTML page.
class Folder {
 public:
  explicit Folder(const std::string& path) : path_(path) {
    metrics_.add(std::make_unique<JsonlSink>(path + "/metrics.jsonl"));
  }
  void step(const StepMetrics& m) { metrics_.step(m); }
  void end(int64_t step, const std::string& text, std::optional<double> rate) {
    metrics_.event({.kind = EventKind::end, .step = step, .text = text, .suggested_rate = rate});
    write_file(path_ + "/report.html", html_report(std::vector<RunRecords>{read_run(path_)}));
  }

 private:
  std::string path_;
  MetricFanOut metrics_;
};

Exit lr_find(const LrFindArgs& args, const std::vector<std::string>& command_line) {
  if (!(args.from > 0 && args.from < args.to))
    throw Error(cat("--from: expected more than 0 and less than --to ", args.to, ", got ", args.from), Exit::usage);
  const RankInfo ranks = find_ranks({}, process_environment());
  const Config config = load_config_logged(args.config, as_lr_find(args), ranks.rank);
  const bool first = ranks.rank == 0;
  std::optional<Folder> folder;
  if (first && !args.output.empty()) {
    if (std::filesystem::exists(args.output + "/metrics.jsonl"))
      throw Error(cat("--output: ", args.output, " holds the records of another run; give a new folder"), Exit::usage);
    make_dirs(args.output);
    write_file(args.output + "/config.resolved.json", dump_resolved(config));
    folder.emplace(args.output);
  }
  Machine machine(config, ranks);
  LrFinder test;
  int64_t steps = 0;
  const auto on_step = [&](const StepMetrics& m) {
    if (folder) folder->step(m);
    steps = m.step;
    return test.add(m.learning_rate, m.loss);
  };
  StopSignals signals;
  std::optional<Trainer> trainer;
  Exit code = Exit::done;
  machine.run([&] {
    trainer.emplace(config, machine.backend(),
                    TrainerOptions{.stop = signals,
                                   .program = program_info(command_line),
                                   .backend_description = machine.description(),
                                   .most_flops = machine.most_flops(),
                                   .on_step = on_step,
                                   .doing = [&](Activity activity, int64_t step) { machine.doing(activity, step); }});
    code = trainer->run();
  });
  signals.leave();                             // as in train: a signal that comes again must not replace the exit code
  const bool stopped = code == Exit::requeue;  // by a signal or exit_duration_in_mins
  if (!first) return stopped ? code : Exit::done;
  const std::optional<double> rate = stopped ? std::nullopt : test.suggestion();
  if (folder) folder->end(steps, stopped ? "stopped" : "done", rate);
  if (stopped)
    print("no learning rate is suggested: the test was stopped after ", steps, " of ", args.steps,
          " steps; start it again", folder ? " with a new --output" : "", "\n");
  else if (rate)
    std::printf("suggested learning rate: %.3g, where the loss falls fastest in %lld steps from %.3g to %.3g\n", *rate,
                static_cast<long long>(steps), args.from, args.to);
  else
    std::printf("no learning rate is suggested: the loss does not fall in %lld steps from %.3g to %.3g\n",
                static_cast<long long>(steps), args.from, args.to);
  if (folder) print(args.output, "/report.html\n");
  return stopped ? code : Exit::done;
}

}  // namespace

void add_lr_find(Cli& cli) {
  auto args = std::make_shared<LrFindArgs>();
  Verb verb = cli.app.add_verb(
      "lr-find",
      "learning-rate range test: train while the rate grows by a constant factor per step, and suggest a rate");
  verb.add_option("config", args->config, "configuration file (JSON), - for standard input").required();
  verb.add_option("--set", args->overrides, "override a key: a.b=value (may repeat)").one_value();
  verb.add_option("--from", args->from, "first learning rate").show_default();
  verb.add_option("--to", args->to, "last learning rate").show_default();
  verb.add_option("--steps", args->steps, "optimizer steps")
      .show_default()
      .check(in_range(int64_t{14}, int64_t{1} << 40));
  verb.add_option("--output", args->output,
                  "new folder for metrics.jsonl and report.html; without it, only print the suggestion");
  verb.on_chosen([&cli, args] { cli.action = [args, line = cli.command_line] { return lr_find(*args, line); }; });
}

}  // namespace athanor
