// athanor train CONFIG.json
#include <cstring>
#include <memory>
#include <optional>

#include "base/log.h"
#include "base/version.h"
#include "checkpoint/store.h"
#include "command/command.h"
#include "command/machine.h"
#include "command/newest_checkpoint.h"
#include "convert/model_folder.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace athanor {
namespace {

struct TrainArgs {
  std::string config;
  std::vector<std::string> overrides;
  std::string load, init_from, profile;
  bool allow_changed_data = false;
  RankFlags ranks;
};

// Folder of the checkpoint that has the model shape. Several ranks find and verify the weights together later, once
// connected; until then the newest checkpoint whose files have the right sizes is used.
std::string folder_with_shape(const std::string& init_from) {
  const auto newest = newest_valid(init_from, nullptr, verify_sizes);
  return newest ? newest->path : newest_model(init_from, verify_sizes);  // newest_model: the folder itself, or an Error
}

Exit train(TrainArgs args, const std::vector<std::string>& command_line) {
  StopSignals signals;
  std::optional<StopAtStart> quick(std::in_place, signals, [](int signal) {
    log::warn("signal ", signal, " (", strsignal(signal), "): stopped before training began; start it again");
  });
  if (!args.load.empty()) args.overrides.push_back("load=" + args.load);
  if (!args.profile.empty()) args.overrides.push_back("profile=" + args.profile);
  const RankInfo ranks = find_ranks(args.ranks, process_environment());
  const bool several = ranks.world > 1;
  if (!args.init_from.empty())
    args.overrides.push_back("init_from=" +
                             (several ? folder_with_shape(args.init_from) : newest_model(args.init_from)));
  Config config = load_config_logged(args.config, args.overrides, ranks.rank);
  if (several && !args.init_from.empty()) config.init_from = args.init_from;
  Machine machine(config, ranks);
  const FoundProfiler found = config.profile.empty() || ranks.rank != 0 ? FoundProfiler{} : machine.open_profiler();
  std::optional<Trainer> trainer;
  Exit code = Exit::done;
  machine.run([&] {
    trainer.emplace(
        config, machine.backend(),
        TrainerOptions{.stop = signals,
                       .program = program_info(command_line),
                       .commit = program_version().commit,
                       .backend_description = machine.description(),
                       .most_flops = machine.most_flops(),
                       .sensors = machine.sensors(),
                       .profiler = found.profiler.get(),
                       .why_no_profiler = found.why_none,
                       .collectives = &machine.collectives(),
                       .allow_changed_data = args.allow_changed_data,
                       .doing = [&](Activity activity, int64_t step) { machine.doing(activity, step); },
                       .on_checkpoint = [&](int64_t step) { write_newest_checkpoint(process_environment(), step); }});
    quick.reset();  // from here on the trainer looks for signals
    code = trainer->run();
  });
  signals.leave();  // the run has ended: a signal that comes again must not replace its exit code
  return code;
}

}  // namespace

void add_train(Cli& cli) {
  auto args = std::make_shared<TrainArgs>();
  Verb verb = cli.app.add_verb("train", "train a model; resumes by itself when the save folder holds a checkpoint");
  verb.add_option("config", args->config, "configuration file (JSON), - for standard input; keys: configs/README.md")
      .required();
  verb.add_option("--set", args->overrides, "override a key: a.b=value (may repeat)").one_value();
  verb.add_option("--load", args->load,
                  "auto: newest valid checkpoint of the save folder; none: start anew; or a checkpoint folder");
  verb.add_option("--init-from", args->init_from,
                  "folder of a model (Hugging Face layout, or a checkpoint) whose weights a new run starts with");
  verb.add_option(
      "--profile", args->profile,
      "write a Chrome trace to this file and a table of ops at the end; on a GPU of kernels as they run (CUPTI), "
      "else of ops timed one by one, which is slower");
  verb.add_flag("--allow-changed-data", args->allow_changed_data,
                "resume although the training data differs from the checkpoint's");
  add_rank_flags(verb, args->ranks);
  verb.on_chosen([&cli, args] { cli.action = [args, line = cli.command_line] { return train(*args, line); }; });
}

}  // namespace athanor
