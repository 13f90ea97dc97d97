// athanor bench step|ops|data CONFIG.json (decode: bench_decode.cc): speed of whole steps, of every op against its
// roofline, of the data loader.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "base/rng.h"
#include "command/command.h"
#include "command/machine.h"
#include "data/loader.h"
#include "metrics/format.h"
#include "train/setup.h"
#include "train/timed_ops.h"

namespace athanor {
namespace {

using Clock = std::chrono::steady_clock;

struct Args {
  std::string config;
  std::vector<std::string> overrides;
  int64_t steps = 10, warmup = 2;
  bool json = false;
};

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.empty() ? 0 : (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

// An engine with weights and one micro-batch of random tokens: timing needs no data.
struct Bench {
  explicit Bench(const Args& args)
      : config(load_config_logged(args.config, args.overrides)),
        machine(config),
        engine(make_engine(config, machine.backend(), true)) {
    engine->commit();
    engine->init_weights();
    const int64_t n = engine->options().micro_batch_size * config.seq_length;
    for (int64_t i = 0; i <= n; ++i)
      tokens.push_back(
          int32_t(random_bits(0, stream_of("bench tokens"), uint64_t(i)) % uint64_t(config.model.vocab_size)));
    targets.assign(tokens.begin() + 1, tokens.end());
    tokens.pop_back();
  }
  void step() {
    for (int64_t m = 0; m < engine->micro_batches(); ++m) engine->micro_batch(tokens, targets, clock);
    engine->finish_step();
  }
  Config config;
  Machine machine;
  std::unique_ptr<Engine> engine;
  std::vector<int32_t> tokens, targets;
  PhaseClock clock;
};

Exit bench_step(const Args& args) {
  Bench b(args);
  for (int64_t i = 0; i < args.warmup; ++i) b.step();
  std::vector<double> ms;
  for (int64_t i = 0; i < args.steps; ++i) {
    const auto begin = Clock::now();
    b.step();
    ms.push_back(seconds_since(begin) * 1e3);
  }
  const double tokens = double(b.config.global_batch_size * b.config.seq_length), mid = median(ms);
  const double flops = flops_per_token(b.engine->model(), b.config.seq_length).causal * tokens / mid * 1e3;
  if (args.json) {
    std::string list;
    for (double x : ms) list += cat(list.empty() ? "" : ", ", x);
    std::printf(
        "{\"step_ms\": [%s], \"tokens_per_step\": %.0f, \"median_ms\": %.4f, \"tokens_per_second\": %.2f, \"flops\": "
        "%.6g, \"parameters\": %lld, \"threads\": %d}\n",
        list.c_str(), tokens, mid, tokens / mid * 1e3, flops,
        static_cast<long long>(b.engine->model().params().parameter_count()), b.machine.threads());
  } else {
    std::printf("%s\nmedian of %lld steps: %.2f ms, %s tokens/s, %s FLOP/s (causal count)\n",
                b.machine.description().c_str(), static_cast<long long>(args.steps), mid,
                format_count(tokens / mid * 1e3).c_str(), format_count(flops).c_str());
  }
  return Exit::done;
}

Exit bench_ops(const Args& args) {
  Bench b(args);
  const Backend backend = b.machine.backend();
  const Ceilings ceilings = measure_ceilings(backend, b.engine->options().recipe.compute);
  TimedOps timed(backend.ops, backend.device);
  b.engine->set_ops(timed);
  for (int64_t i = 0; i < args.warmup; ++i) b.step();
  timed.totals.clear();
  const auto begin = Clock::now();
  for (int64_t i = 0; i < args.steps; ++i) b.step();
  const double step = seconds_since(begin) / double(args.steps);
  std::vector<std::pair<std::string, TimedOps::Total>> rows(timed.totals.begin(), timed.totals.end());
  std::sort(rows.begin(), rows.end(), [](const auto& x, const auto& y) { return x.second.seconds > y.second.seconds; });
  std::printf("%s\nmeasured ceilings: %s FLOP/s (product), %s B/s (copy); step %.2f ms\n\n",
              b.machine.description().c_str(), format_count(ceilings.flops).c_str(),
              format_count(ceilings.bytes).c_str(), step * 1e3);
  std::printf("%-16s %8s %10s %7s %10s %10s %9s %8s\n", "op", "launches", "ms/step", "share", "FLOP/s", "B/s",
              "roofline", "lost ms");
  double sum = 0;
  for (const auto& [name, t] : rows) {
    const double seconds = t.seconds / double(args.steps),
                 least = ceilings.least_seconds({t.flops, t.bytes}) / double(args.steps);
    sum += seconds;
    std::printf("%-16s %8lld %10.3f %6.1f%% %10s %10s %8.1f%% %8.3f\n", name.c_str(),
                static_cast<long long>(t.launches / args.steps), seconds * 1e3, 100 * seconds / step,
                format_count(t.flops / t.seconds).c_str(), format_count(t.bytes / t.seconds).c_str(),
                100 * least / seconds, (seconds - least) * 1e3);
  }
  std::printf("%-16s %8s %10.3f %6.1f%%\n", "between ops", "", (step - sum) * 1e3, 100 * (step - sum) / step);
  return Exit::done;
}

Exit bench_data(const Args& args) {
  const Config config = load_config_logged(args.config, args.overrides);
  const Dataset data = open_dataset(config.train_data, config);
  const int64_t rows = std::max<int64_t>(1, config.micro_batch_size);
  Loader loader(data, {.order = {.seed = uint64_t(config.seed)}, .rows = rows});
  const auto begin = Clock::now();
  int64_t tokens = 0;
  while (seconds_since(begin) < 2.0) {
    loader.next();
    tokens += rows * config.seq_length;
  }
  std::printf("%s\nloader: %s tokens/s\n", data.description().c_str(),
              format_count(double(tokens) / seconds_since(begin)).c_str());
  return Exit::done;
}

void add_bench_verb(Cli& cli, CLI::App* parent, const char* name, const char* help, Exit (*run)(const Args&)) {
  auto args = std::make_shared<Args>();
  CLI::App* verb = parent->add_subcommand(name, help);
  verb->add_option("config", args->config, "configuration file")->required();
  verb->add_option("--set", args->overrides, "override a key: a.b=value (may repeat)")->allow_extra_args(false);
  if (run != bench_data) {
    verb->add_option("--steps", args->steps, "steps timed")->capture_default_str()->check(CLI::PositiveNumber);
    verb->add_option("--warmup", args->warmup, "steps before")->capture_default_str()->check(CLI::NonNegativeNumber);
  }
  if (run == bench_step) verb->add_flag("--json", args->json, "one JSON object");
  verb->callback([&cli, args, run] { cli.action = [args, run] { return run(*args); }; });
}

}  // namespace

void add_bench(Cli& cli) {
  CLI::App* verb = cli.app.add_subcommand("bench", "how fast this machine runs a config");
  verb->require_subcommand(1);
  add_bench_verb(cli, verb, "step", "whole optimizer steps on random tokens", bench_step);
  add_bench_verb(cli, verb, "ops", "every op: time, rate, distance from the roofline", bench_ops);
  add_bench_device(cli, *verb);
  add_bench_verb(cli, verb, "data", "tokens per second of the data loader", bench_data);
  add_bench_decode(cli, verb);
  add_bench_comm(cli, *verb);
}

}  // namespace athanor
