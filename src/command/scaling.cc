// athanor scaling: the best model size and number of tokens for a compute budget, and how long training takes.
#include <cmath>
#include <cstdio>
#include <memory>

#include "analysis/scaling_law.h"
#include "base/format.h"
#include "command/command.h"
#include "command/machine.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr const char* kSources =
    "Laws: Kaplan et al. 2020, \"Scaling Laws for Neural Language Models\" (parameters without embeddings); Hoffmann "
    "et "
    "al. 2022, \"Training Compute-Optimal Large Language Models\" (Chinchilla: 20 tokens a parameter, and approach 3's "
    "formula); Besiroglu et al. 2024, \"Chinchilla Scaling: A replication attempt\" (the formula fitted again: take "
    "this "
    "one). All count 6 operations per parameter and token. They say where one pass over enough data is best spent on "
    "training alone; a model that will be used much should be smaller and see more tokens.";

struct ScalingArgs {
  std::string config;
  std::vector<std::string> overrides;
  double parameters = 0, flops = 0, rate = 0, hours = 0;
};

void print_row(std::string_view law, const Allocation& a, double rate, double loss = NAN) {
  const std::string predicted = std::isfinite(loss) ? format_text("%.3f", loss) : "-";
  std::printf("  %-36s %10s %10s %12.1f %10s %10s %10s\n", std::string(law).c_str(), format_count(a.parameters).c_str(),
              format_count(a.tokens).c_str(), a.tokens / a.parameters, format_count(a.flops()).c_str(),
              predicted.c_str(), rate > 0 ? format_duration(a.flops() / rate).c_str() : "-");
}

void print_head(const std::string& title) {
  std::printf("\n%s\n  %-36s %10s %10s %12s %10s %10s %10s\n", title.c_str(), "law", "parameters", "tokens",
              "tokens/param", "FLOP", "loss", "time");
}

void print_for_budget(double flops, double rate) {
  print_head(cat("best use of ", format_count(flops), " FLOP"));
  for (const LossLaw& law : loss_laws()) {
    const Allocation a = law.best_for_flops(flops);
    print_row(law.name, a, rate, law.loss(a.parameters, a.tokens));
  }
  print_row("Hoffmann et al. 2022, 20 tokens each", twenty_tokens_for_flops(flops), rate);
  print_row("Kaplan et al. 2020 (superseded)", kaplan_best_for_flops(flops), rate);
}

void print_for_parameters(double parameters, double rate) {
  print_head(cat("tokens for which ", format_count(parameters), " parameters are best"));
  for (const LossLaw& law : loss_laws()) {
    const Allocation a = law.best_for_parameters(parameters);
    print_row(law.name, a, rate, law.loss(a.parameters, a.tokens));
  }
  print_row("Hoffmann et al. 2022, 20 tokens each", {parameters, kTokensPerParameter * parameters}, rate);
}

// Evaluates a configured run by the same laws. Of experts, only those that a token meets count: the laws are of dense
// models, whose tokens meet every parameter, and count 6 operations for each.
double print_config(const ScalingArgs& args) {
  const Config config = load_config_logged(args.config, args.overrides);
  require_language_model(config.model, "scaling");
  const auto model = make_model(config.model);
  const double parameters = double(active_parameter_count(config.model));
  const double tokens = double(samples_after(config, config.train_iters)) * double(config.seq_length);
  const double flops = flops_per_token(*model, config.seq_length).causal * tokens;
  const std::string all =
      config.model.num_experts > 0 ? cat(" of ", format_count(double(parameter_count(config.model)))) : "";
  std::printf("%s: %s%s parameters%s, %s tokens (%.1f a parameter), %s FLOP with attention", args.config.c_str(),
              format_count(parameters).c_str(), all.c_str(), all.empty() ? "" : " meet a token",
              format_count(tokens).c_str(), tokens / parameters, format_count(flops).c_str());
  if (args.rate > 0) print(", ", format_duration(flops / args.rate), " at this rate");
  print("\n");
  print_head("the run by the same laws");
  for (const LossLaw& law : loss_laws())
    print_row(law.name, {parameters, tokens}, args.rate, law.loss(parameters, tokens));
  print_for_budget(6 * parameters * tokens, args.rate);
  return parameters;
}

Exit scaling(const ScalingArgs& args) {
  const double flops = args.flops > 0 ? args.flops : args.rate * args.hours * 3600;
  if (args.config.empty() && args.parameters <= 0 && flops <= 0)
    throw Error("scaling: nothing to plan: give a config, --parameters, --flops, or --rate with --hours", Exit::usage);
  double parameters = args.parameters;
  if (!args.config.empty()) parameters = print_config(args);
  if (flops > 0) print_for_budget(flops, args.rate);
  if (parameters > 0) print_for_parameters(parameters, args.rate);
  print("\nThe loss is in nats per token of the laws' own data and vocabulary; `athanor scaling --help` names them.\n");
  return Exit::done;
}

}  // namespace

void add_scaling(Cli& cli) {
  auto args = std::make_shared<ScalingArgs>();
  Verb verb =
      cli.app.add_verb("scaling", "compute-optimal sizes, tokens and times for a budget, by published scaling laws");
  verb.footer(kSources);
  verb.add_option("config", args->config, "configuration file: evaluates its run, and the best use of its budget");
  verb.add_option("--set", args->overrides, "override a key of the config: a.b=value (may repeat)").one_value();
  verb.add_option("--parameters", args->parameters, "parameters of the model, such as 1.2e9")
      .check(in_range(1.0, 1e18));
  verb.add_option("--flops", args->flops, "budget in FLOPs, such as 1e21").check(in_range(1.0, 1e40));
  verb.add_option("--rate", args->rate, "FLOP/s of all devices during training: peak x MFU").check(in_range(1.0, 1e30));
  verb.add_option("--hours", args->hours, "budget in time at that rate").check(in_range(0.0, 1e9)).needs("--rate");
  verb.on_chosen([&cli, args] { cli.action = [args] { return scaling(*args); }; });
}

}  // namespace athanor
