// athanor bench step|ops|data CONFIG.json (decode: bench_decode.cc): speed of whole steps, of their ops compared with
// the limit of each op, and of the data loader.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/format.h"
#include "base/rng.h"
#include "command/command.h"
#include "command/machine.h"
#include "data/loader.h"
#include "perf/step_profile.h"
#include "perf/timing.h"
#include "train/setup.h"

namespace athanor {
namespace {

struct BenchArgs {
  std::string config;
  std::vector<std::string> overrides;
  int64_t steps = 10, warmup = 2;
  bool json = false, ops = false;
  std::vector<double> rates;
  RankFlags ranks;
};

// An engine with weights and one micro-batch of random tokens; timing needs no data.
struct Bench {
  Bench(const Config& c, Machine& m) : config(c), machine(m), engine(make_engine(config, machine.backend(), true)) {
    const Backend backend = machine.backend();
    if (backend.tuning && is_first()) search_gemms(config, *engine, *backend.tuning);
    share_choices(backend);
    engine->commit();
    attention = attention_words(*engine, backend.tuning);
    engine->init_weights();
    engine->set_compressed(true);  // as in most steps of a 1-bit optimizer
    const int64_t n = engine->options().micro_batch_size * config.seq_length, from = engine->rank() * n;
    for (int64_t i = 0; i <= n; ++i)
      tokens.push_back(int32_t(random_bits(0, stream_of("bench tokens"), uint64_t(from + i)) %
                               uint64_t(input_tokens(config.model))));
    targets.assign(tokens.begin() + 1, tokens.end());
    tokens.pop_back();
  }
  void step() {
    machine.doing(Activity::step, ++steps);
    for (int64_t m = 0; m < engine->micro_batches(); ++m) engine->micro_batch(tokens, targets, clock);
    engine->finish_step();
  }
  bool is_first() const { return machine.backend().mesh.world().rank() == 0; }
  // Returns the maximum over all ranks, on all ranks.
  double most_of_ranks(double value) const {
    Communicator* ranks = machine.backend().control;
    if (ranks) ranks->all_reduce({&value, DType::f64, {1}}, Reduce::max, Stream::compute);
    return value;
  }
  Config config;
  Machine& machine;
  std::unique_ptr<Engine> engine;
  std::string attention;  // attention_words()
  std::vector<int32_t> tokens, targets;
  PhaseClock clock;
  int64_t steps = 0;  // number of steps begun
};

// Seconds of one step, on the slowest rank.
double seconds_of_step(Bench& b) {
  const auto begin = Clock::now();
  b.step();
  return b.most_of_ranks(seconds_since(begin));
}

std::vector<double> time_steps(Bench& b, int64_t steps) {
  std::vector<double> seconds;
  for (int64_t i = 0; i < steps; ++i) seconds.push_back(seconds_of_step(b));
  return seconds;
}

// Times of all ops, and with several ranks of all collectives.
struct OpTimes {
  OpTimes(Bench& b, const BenchArgs& args, bool by_shape)
      : limits{.most = given_or_measured(args.rates, b.machine.backend(), b.engine->options().recipe)},
        found(b.machine.open_profiler()),
        profile(*b.engine, b.machine.backend(),
                {.profiler = found.profiler.get(),
                 .why_events = found.why_none,
                 .limits = limits,
                 .by_shape = by_shape,
                 .collectives = &b.machine.collectives()}) {}
  Roofline limits;
  FoundProfiler found;
  StepProfile profile;
};

// Runs steps in which rank 0 times every op; returns null on other ranks.
std::unique_ptr<OpTimes> time_ops(Bench& b, const BenchArgs& args, bool by_shape) {
  b.machine.doing(Activity::startup, 0);
  auto ops = b.is_first() ? std::make_unique<OpTimes>(b, args, by_shape) : nullptr;
  while (b.most_of_ranks(ops && ops->profile.steps() < args.steps ? 1 : 0) > 0) {
    const double seconds = seconds_of_step(b);
    if (ops) ops->profile.end_step(seconds);
  }
  return ops;
}

nlohmann::ordered_json source_json(const StepProfile& profile) {
  nlohmann::ordered_json json = {{"source", profile.source()}};
  if (profile.source() == "events") {
    json["why"] = profile.why_events();
  } else {
    json["idle"] = profile.occupied().idle();
    json["exposed_communication_ms"] = profile.occupied().exposed / double(profile.steps()) * 1e3;
    json["exposed_communication_ms_by_kind"] = nlohmann::ordered_json::object();
    for (const auto& [kind, seconds] : profile.occupied().exposed_by)
      json["exposed_communication_ms_by_kind"][kind] = seconds / double(profile.steps()) * 1e3;
    json["lost_records"] = profile.lost();
  }
  return json;
}

nlohmann::ordered_json ops_json(const StepProfile& profile) {
  nlohmann::ordered_json ops = nlohmann::ordered_json::array();
  const auto per_step = [&](double x) { return x / double(profile.steps()); };
  for (const auto& [name, row] : ordered(profile.rows()))
    ops.push_back({{"op", name},
                   {"launches", per_step(double(row.launches))},
                   {"flops", per_step(row.cost.flops)},
                   {"bytes", per_step(row.cost.bytes)},
                   {"ms", per_step(row.seconds) * 1e3},
                   {"limit_ms", per_step(row.least) * 1e3}});
  return ops;
}

nlohmann::ordered_json communication_json(const StepProfile& profile) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const CommunicationRow& row : profile.communication())  // unknown or not modelled: null
    rows.push_back({{"layer", row.of.layer},
                    {"group", row.of.group},
                    {"calls", row.calls},
                    {"exposed_ms", row.exposed * 1e3},
                    {"modelled_exposed_ms", row.modelled * 1e3},
                    {"ms", row.seconds * 1e3}});
  return rows;
}

struct StepTimes {
  std::vector<double> seconds;  // time of each step
  double cpu = 0;               // CPU seconds of this process' threads in all steps
  double median() const { return athanor::median(seconds); }
};

StepTimes time_steps_and_cpu(Bench& b, int64_t steps) {
  const std::clock_t cpu = std::clock();
  StepTimes times{time_steps(b, steps)};
  times.cpu = double(std::clock() - cpu) / CLOCKS_PER_SEC;
  return times;
}

double tokens_of_step(const Bench& b) { return double(b.config.global_batch_size * b.config.seq_length); }

// Rate of the step's FLOPs per rank, in FLOP/s.
double flops_of_rank(const Bench& b, const StepTimes& times) {
  return flops_per_token(*b.engine, b.config.seq_length).causal * tokens_of_step(b) / times.median() /
         double(b.engine->devices());
}

std::string to_json(const Bench& b, const StepTimes& times, const OpTimes* ops) {
  const double sum = std::accumulate(times.seconds.begin(), times.seconds.end(), 0.0);
  nlohmann::ordered_json out = {{"tokens_per_step", tokens_of_step(b)},
                                {"median_ms", times.median() * 1e3},
                                {"tokens_per_second", tokens_of_step(b) / times.median()},
                                {"flops", flops_of_rank(b, times)},
                                {"parameters", b.engine->model().params().parameter_count()},
                                {"micro_batch_size", b.engine->options().micro_batch_size},
                                {"memory_bytes", b.engine->memory().total()},
                                {"threads", b.machine.threads()},
                                {"attention", b.attention},
                                {"host_cores", times.cpu / sum}};
  const bool several = b.engine->devices() > 1;
  if (several) out["ranks"] = b.engine->devices();
  for (const double s : times.seconds) out["step_ms"].push_back(s * 1e3);
  if (ops) {
    const StepProfile& profile = ops->profile;
    out["ceilings"] = {{"flops", ops->limits.most.flops}, {"bytes", ops->limits.most.bytes}};
    // Covers only the steps whose ops were timed; in other steps the machine may have been busier.
    out["profiled_ms"] = profile.step_seconds() * 1e3;
    out["explained"] = measured_sum(profile.rows()) / double(profile.steps()) / profile.step_seconds();
    out["times"] = source_json(profile);
    out["ops"] = ops_json(profile);
    if (several) out["communication"] = communication_json(profile);
  }
  return out.dump() + "\n";
}

std::string to_text(const Bench& b, const StepTimes& times, const OpTimes& ops) {
  const int ranks = b.engine->devices();
  const std::string text = format_text(
      "\nmedian of %zu steps%s: %.2f ms, %s tokens/s, %s FLOP/s%s (causal count)\nmeasured ceilings: %s FLOP/s "
      "(GEMM), %s B/s (copy)\n\n",
      times.seconds.size(), ranks > 1 ? cat(" of ", ranks, " ranks").c_str() : "", times.median() * 1e3,
      format_count(tokens_of_step(b) / times.median()).c_str(), format_count(flops_of_rank(b, times)).c_str(),
      ranks > 1 ? " of each" : "", format_count(ops.limits.most.flops).c_str(),
      format_count(ops.limits.most.bytes).c_str());
  return cat(b.machine.description(), b.attention.empty() ? "" : "\n", b.attention, text,
             ops.profile.table(ops.profile.step_seconds()));
}

Exit bench_step(const BenchArgs& args, bool by_shape) {
  const RankInfo ranks = find_ranks(args.ranks, process_environment());
  const Config config = load_config_logged(args.config, args.overrides, ranks.rank);
  Machine machine(config, ranks);
  machine.run([&] {
    Bench b(config, machine);
    time_steps(b, args.warmup);
    const StepTimes times = time_steps_and_cpu(b, args.steps);
    const auto ops = !args.json || args.ops ? time_ops(b, args, by_shape) : nullptr;
    if (b.is_first()) print(args.json ? to_json(b, times, ops.get()) : to_text(b, times, *ops));
    std::fflush(stdout);
    if (Communicator* all = machine.backend().control) all->barrier();  // no rank leaves while rank 0 is busy
  });
  return Exit::done;
}

Exit bench_step_by_op(const BenchArgs& args) { return bench_step(args, false); }
Exit bench_step_by_shape(const BenchArgs& args) { return bench_step(args, true); }

Exit bench_data(const BenchArgs& args) {
  const Config config = load_config_logged(args.config, args.overrides);
  const Dataset data = open_training_data(config);
  const int64_t rows = std::max<int64_t>(1, config.micro_batch_size);
  Loader loader(data, {.order = {.seed = uint64_t(config.seed)},
                       .rows = rows,
                       .packing = packing_options(config, data),
                       .augmentation = augmentation(config)});
  const auto begin = Clock::now();
  int64_t tokens = 0;
  while (seconds_since(begin) < 2.0) {
    loader.next();
    tokens += rows * config.seq_length;
  }
  print(data.description(), "\nloader: ", format_count(double(tokens) / seconds_since(begin)), " tokens/s\n");
  return Exit::done;
}

void add_bench_verb(Cli& cli, Verb parent, const char* name, const char* help, Exit (*run)(const BenchArgs&)) {
  auto args = std::make_shared<BenchArgs>();
  Verb verb = parent.add_verb(name, help);
  verb.add_option("config", args->config, "configuration file").required();
  verb.add_option("--set", args->overrides, "override a key: a.b=value (may repeat)").one_value();
  if (run != bench_data) {
    verb.add_option("--steps", args->steps, "timed steps").show_default().check(in_range(int64_t{1}, int64_t{1} << 40));
    verb.add_option("--warmup", args->warmup, "untimed steps before")
        .show_default()
        .check(in_range(int64_t{0}, int64_t{1} << 40));
  }
  if (run != bench_data) {
    verb.add_flag("--json", args->json, "one JSON object");
    verb.add_flag("--ops", args->ops, "with --json: include the table of ops and, with several ranks, of collectives");
    add_rates(verb, args->rates);
    add_rank_flags(verb, args->ranks);
  }
  verb.on_chosen([&cli, args, run] { cli.action = [args, run] { return run(*args); }; });
}

}  // namespace

void add_bench(Cli& cli) {
  Verb verb = cli.app.add_verb("bench", "how fast this machine runs a config");
  verb.require_verb();
  add_bench_verb(cli, verb, "step", "whole optimizer steps on random tokens, with a table of ops", bench_step_by_op);
  add_bench_verb(cli, verb, "ops", "bench step with a table by op and shape", bench_step_by_shape);
  add_bench_device(cli, verb);
  add_bench_verb(cli, verb, "data", "tokens per second of the data loader", bench_data);
  add_bench_gemm(cli, verb);
  add_bench_attention(cli, verb);
  add_bench_decode(cli, verb);
  add_bench_comm(cli, verb);
}

}  // namespace athanor
