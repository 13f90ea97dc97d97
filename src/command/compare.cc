// athanor compare CONFIG --output FOLDER: trains a configuration in low precision and in bf16, with the same seed and
// data, and reports the difference between the two runs.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "analysis/run_comparison.h"
#include "base/file.h"
#include "base/log.h"
#include "command/child.h"
#include "command/command.h"
#include "command/machine.h"
#include "report/html_report.h"

namespace athanor {
namespace {

struct CompareArgs {
  std::string config, folder, reference = "bf16";
  std::vector<std::string> overrides;
  bool summary = false;
  ComparisonLimits limits;
};

// These overrides come last, so that neither the file nor --set changes them.
std::vector<std::string> of_both(const CompareArgs& args, const std::string& name) {
  std::vector<std::string> all = args.overrides;
  all.insert(all.end(), {cat("save=", args.folder, "/", name), "load=auto", "logging.jsonl=true"});
  return all;
}

std::vector<std::string> of_reference(const CompareArgs& args) {
  std::vector<std::string> all = of_both(args, args.reference);
  all.insert(all.end(), {cat("precision=", args.reference), "fp8.format=auto", "fp8.power_of_two_scales=false",
                         "fp8.exclude=[]", "fp8.min_size=0", "fp8.lm_head=false", "fp8.num_layers_at_start_in_bf16=0",
                         "fp8.num_layers_at_end_in_bf16=0", "logging.quantization_interval=0"});
  return all;
}

std::vector<std::string> of_run(const CompareArgs& args, const Config& config) {
  constexpr int64_t kRecords = 100;  // records per matrix, unless the configuration sets an interval
  std::vector<std::string> all = of_both(args, std::string(name_of(config.precision)));
  if (config.log_quantization_interval == 0)
    all.push_back(cat("logging.quantization_interval=", std::max<int64_t>(1, config.train_iters / kRecords)));
  return all;
}

// Returns Exit::done, or the reason why there is nothing to compare.
Exit train(const CompareArgs& args, const std::string& name, const std::vector<std::string>& overrides) {
  const std::string log = cat(args.folder, "/", name, ".log");
  log::info("compare: ", name, ", with its output in ", log);
  std::vector<std::string> command = {own_program(), "train", args.config};
  for (const std::string& text : overrides) command.insert(command.end(), {"--set", text});
  await_free_run(cat(args.folder, "/", name));
  const ChildEnd end = run_child(command, log);
  if (end.stopped || end.code == int(Exit::requeue)) {
    log::info("compare: stopped in ", name, "; the same command resumes");
    return Exit::requeue;
  }
  // A diverged run is compared up to its end.
  if (end.code == 0 || end.code == int(Exit::diverged)) return Exit::done;
  log::error("compare: ", name, " failed with exit code ", end.code, "; its output is in ", log);
  return Exit::error;
}

RunRecords records_of(const CompareArgs& args, const std::string& name) {
  RunRecords run = read_run(cat(args.folder, "/", name));
  warn_of_unreadable_lines(run);
  return run;
}

Exit compare(const CompareArgs& args) {
  if (args.config == "-")
    throw Error("compare: expected a configuration file, which both runs read; got -", Exit::usage);
  const Config config = load_config(args.config, args.overrides);
  const std::string name(name_of(config.precision));
  if (!low_precision(config.precision))
    throw Error(cat("compare: precision ", name,
                    " does not quantize, so there is nothing to compare; expected a low precision, such as --set "
                    "precision=fp8_tensorwise"),
                Exit::usage);
  const std::vector<std::string> run = of_run(args, config), reference = of_reference(args);
  const Config reference_config = load_config(args.config, reference);
  if (low_precision(reference_config.precision))
    throw Error(cat("--reference: expected fp32, tf32, bf16 or fp16, got ", args.reference), Exit::usage);
  const Config run_config = load_config(args.config, run);
  make_dirs(args.folder);
  if (!args.summary) {
    require_same_values(cat(args.folder, "/", args.reference), reference_config);
    require_same_values(cat(args.folder, "/", name), run_config);
    if (const Exit code = train(args, args.reference, reference); code != Exit::done) return code;
    if (const Exit code = train(args, name, run); code != Exit::done) return code;
  }
  const std::vector<RunRecords> both = {records_of(args, name), records_of(args, args.reference)};
  const RunComparison report = compare_runs(both[0], both[1], args.limits);
  write_file(args.folder + "/compare.json", comparison_json(report));
  write_file(args.folder + "/report.html",
             html_report(both, {.title = cat("Comparison: ", name, ", ", args.reference)}));
  print(comparison_summary(report), "\n", args.folder, "/compare.json\n", args.folder, "/report.html\n");
  std::fflush(stdout);
  for (const std::string& alarm : report.alarms) log::warn("compare: ", alarm);
  return report.alarms.empty() ? Exit::done : Exit::error;
}

}  // namespace

void add_compare(Cli& cli) {
  auto args = std::make_shared<CompareArgs>();
  Verb verb = cli.app.add_verb("compare",
                               "train a config in FP8 or FP4 and in bf16, and compare losses and quantization errors");
  verb.footer(
      "The output folder holds both runs with a log each, compare.json and report.html. Started again, the runs go on "
      "from their checkpoints. Beyond a limit there is a warning for each alarm, and the exit code is 1.");
  verb.add_option("config", args->config, "configuration file").required();
  verb.add_option("--set", args->overrides, "override a key of both runs: a.b=value (may repeat)").one_value();
  verb.add_option("-o,--output", args->folder, "folder of the two runs").required();
  verb.add_option("--reference", args->reference, "precision of the reference run").show_default();
  verb.add_flag("--summary", args->summary, "run nothing: compare the existing runs");
  verb.add_option("--max-gap", args->limits.gap,
                  "alarm if the relative gap of the smoothed training loss or the final evaluation loss exceeds this")
      .show_default();
  verb.add_option("--max-saturated", args->limits.saturated,
                  "alarm if a larger fraction of a matrix's values saturates")
      .show_default();
  verb.add_option("--max-underflowed", args->limits.underflowed,
                  "alarm if a larger fraction of a matrix's nonzero values is quantized to zero")
      .show_default();
  verb.on_chosen([&cli, args] { cli.action = [args] { return compare(*args); }; });
}

}  // namespace athanor
