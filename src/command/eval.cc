// athanor eval CHECKPOINT --data ...: loss, perplexity and bits per byte of a checkpoint on shards.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>

#include "command/command.h"
#include "command/machine.h"
#include "train/evaluate.h"
#include "train/setup.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

struct Args {
  std::string checkpoint;
  std::vector<std::string> data, overrides;
  int64_t samples = 0;
  bool json = false;
};

Exit eval(const Args& args) {
  std::vector<std::string> overrides = args.overrides;
  overrides.push_back("load=none");
  Config config = load_config_logged(args.checkpoint + "/config.resolved.json", overrides);
  if (!args.data.empty()) {
    config.valid_data.clear();
    for (const std::string& path : args.data) config.valid_data.push_back({.path = path});
  }
  if (config.valid_data.empty()) throw Error("eval: no data: give --data, or valid_data in the config", Exit::usage);
  Machine machine(config);
  const Dataset data = open_dataset(config.valid_data, config);
  const auto engine = make_engine(config, machine.backend(), false);
  engine->commit();
  load_weights(*engine, machine.backend().device, args.checkpoint);
  const EvalResult r = evaluate(*engine, data, args.samples);
  if (args.json)
    std::printf("{\"loss\": %.9g, \"perplexity\": %.9g, \"bits_per_token\": %.9g, \"tokens\": %lld}\n", r.loss,
                std::exp(r.loss), r.loss / std::log(2.0), static_cast<long long>(r.tokens));
  else
    std::printf("loss %.4f nats per token, perplexity %.3f, %.4f bits per token, over %lld tokens\n", r.loss,
                std::exp(r.loss), r.loss / std::log(2.0), static_cast<long long>(r.tokens));
  return Exit::done;
}

}  // namespace

void add_eval(Cli& cli) {
  auto args = std::make_shared<Args>();
  CLI::App* verb = cli.app.add_subcommand("eval", "validation loss of a checkpoint");
  verb->add_option("checkpoint", args->checkpoint, "checkpoint folder (step-NNNNNNNN)")->required();
  verb->add_option("--data", args->data, "token shards or patterns; default: valid_data of the run");
  verb->add_option("--samples", args->samples, "at most so many windows; 0: all")->capture_default_str();
  verb->add_option("--set", args->overrides, "override a key of the run's config: a.b=value (may repeat)")
      ->allow_extra_args(false);
  verb->add_flag("--json", args->json, "one JSON object instead of a sentence");
  verb->callback([&cli, args] { cli.action = [args] { return eval(*args); }; });
}

}  // namespace athanor
