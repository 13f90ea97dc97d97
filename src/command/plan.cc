// athanor plan CONFIG.json: memory, parameters and operations of a run, without running it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "command/command.h"
#include "command/machine.h"
#include "command/plan_ranks.h"
#include "metrics/format.h"
#include "train/advice.h"
#include "train/setup.h"

namespace athanor {
namespace {

void print_memory(const Config& config, Engine& engine, const Device& device) {
  const MemoryPlan& plan = engine.memory();
  std::printf("\nmemory per rank                      made smaller by\n");
  for (int k = 0; k < kMemoryKinds; ++k) {
    const auto kind = static_cast<MemoryKind>(k);
    if (const size_t bytes = plan.total(kind); bytes > 0)
      std::printf("  %-12s %12s  %5.1f %%   %s\n", name_of(kind), format_bytes(bytes).c_str(),
                  100.0 * double(bytes) / double(plan.total()), knob_of(kind));
  }
  std::printf("  %-12s %12s            one allocation, exact\n", "total", format_bytes(plan.total()).c_str());
  std::printf("  %-12s %12s            runtime_reserve_mib: code, libraries, buffers of the system\n", "reserve",
              format_bytes(runtime_reserve(config)).c_str());
  std::printf("  %-12s %12s            memory_limit_gib, or what this machine has\n", "may be used",
              format_bytes(memory_capacity(config, device)).c_str());
  std::printf("\nphase             buffers   bytes packed   least possible\n");
  for (const ArenaPhase& p : engine.arena().phases())
    std::printf("  %-15s %7zu   %12s   %12s\n", p.name.c_str(), p.blocks.size(), format_bytes(p.packed_bytes).c_str(),
                format_bytes(p.peak_live).c_str());
}

Exit plan(const std::string& path, const std::vector<std::string>& overrides) {
  const Config config = load_config_logged(path, overrides);
  Machine machine(config);
  const auto engine = make_engine(config, machine.backend(), true);
  const ParamStore& params = engine->model().params();
  const FlopCount flops = flops_per_token(engine->model(), config.seq_length);
  const double tokens = double(config.global_batch_size * config.seq_length);
  std::printf("%s\n", machine.description().c_str());
  std::printf("parameters        %s (%lld)\n", format_count(double(params.parameter_count())).c_str(),
              static_cast<long long>(params.parameter_count()));
  std::printf("FLOP per token    %s causal, %s full count\n", format_count(flops.causal).c_str(),
              format_count(flops.full).c_str());
  std::printf("FLOP per step     %s over %s tokens\n", format_count(flops.causal * tokens).c_str(),
              format_count(tokens).c_str());
  std::printf("tokens in all     %s in %lld steps\n", format_count(tokens * double(config.train_iters)).c_str(),
              static_cast<long long>(config.train_iters));
  std::printf("micro-batches     %lld of %lld sequences of %lld tokens\n",
              static_cast<long long>(engine->micro_batches()),
              static_cast<long long>(engine->options().micro_batch_size), static_cast<long long>(config.seq_length));
  const int64_t multiple = machine.backend().device.dimension_multiple();
  for (const DimensionAdvice& advice : dimension_advice(config.model, config.seq_length, multiple))
    std::printf("advice            %s\n", to_text(advice, multiple).c_str());
  const Ceilings most = ceilings(machine.backend(), engine->options().recipe.compute);
  const double least = engine->least_step_seconds(most);
  std::printf(
      "predicted step    %.4g ms or more, %s tokens/s and %.0f %% MFU at most (every op at its roofline: %s FLOP/s, %s "
      "B/s)\n",
      least * 1e3, format_count(tokens / least).c_str(), 100 * flops.causal * tokens / least / most.flops,
      format_count(most.flops).c_str(), format_count(most.bytes).c_str());
  print_memory(config, *engine, machine.backend().device);
  std::printf("launches per micro-batch: %lld\n", static_cast<long long>(engine->launches_per_micro_batch()));
  return Exit::done;
}

}  // namespace

void add_plan(Cli& cli) {
  struct Args {
    std::string config;
    std::vector<std::string> overrides;
    ManyRanks many;
  };
  auto args = std::make_shared<Args>();
  CLI::App* verb =
      cli.app.add_subcommand("plan", "memory by category, parameters and FLOPs of a run, without running it");
  verb->add_option("config", args->config, "configuration file")->required();
  verb->add_option("--set", args->overrides, "override a key: a.b=value (may repeat)")->allow_extra_args(false);
  verb->add_option("--gpu", args->many.gpu,
                   "a100, h100 or h200: predict memory, traffic and time of many ranks with such GPUs");
  verb->add_option("--ranks", args->many.ranks, "how many; default: a table of 1 to 1024")
      ->check(CLI::Range(1, 65536))
      ->needs("--gpu");
  verb->add_option("--nodes", args->many.nodes, "machines they are on; default: 8 GPUs in each")
      ->check(CLI::Range(1, 65536))
      ->needs("--ranks");
  verb->callback([&cli, args] {
    cli.action = [args] {
      if (args->many.gpu.empty()) return plan(args->config, args->overrides);
      print_many_ranks(load_config_logged(args->config, args->overrides), args->many);
      return Exit::done;
    };
  });
}

}  // namespace athanor
