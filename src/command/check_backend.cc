// athanor check-backend CONFIG.json: training steps in which every op also runs on the double-precision reference.
#include <memory>

#include "base/rng.h"
#include "command/command.h"
#include "command/machine.h"
#include "ops/check_ops.h"
#include "reference/reference_ops.h"
#include "train/distillation.h"
#include "train/setup.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

struct CheckBackendArgs {
  std::string config;
  std::vector<std::string> overrides;
  int64_t steps = 3;
};

Exit check_backend(const CheckBackendArgs& args) {
  const Config config = load_config_logged(args.config, args.overrides);
  Machine machine(config);
  const auto engine = make_engine(config, machine.backend(), true);
  if (Tuning* tuning = machine.backend().tuning) search_gemms(config, *engine, *tuning);  // as in training
  engine->commit();
  engine->init_weights();
  if (engine->teacher())
    load_weights(engine->teacher()->params(), machine.backend().device,
                 ModelFolder(find_teacher(config, machine.backend())));
  const auto reference = make_reference();
  CheckOps check(machine.backend().ops, machine.backend().device, *reference);
  engine->set_ops(check);
  const size_t n = size_t(engine->options().micro_batch_size * config.seq_length);
  std::vector<int32_t> tokens(n), targets(n);
  PhaseClock clock;
  uint64_t draw = 0;
  for (int64_t step = 0; step < args.steps; ++step) {
    for (int64_t m = 0; m < engine->micro_batches(); ++m) {
      for (auto* side : {&tokens, &targets})
        for (int32_t& t : *side)
          t = int32_t(random_bits(uint64_t(config.seed), stream_of("check tokens"), draw++) %
                      uint64_t(input_tokens(config.model)));
      engine->micro_batch(tokens, targets, clock);
    }
    engine->finish_step();
  }
  std::string attention = attention_words(*engine, machine.backend().tuning);
  if (!attention.empty()) attention += "\n";
  print(machine.description(), "\n", attention, check.report());
  if (!check.passed()) throw Error("check-backend: an op is outside its tolerance; see the table");
  return Exit::done;
}

}  // namespace

void add_check_backend(Cli& cli) {
  auto args = std::make_shared<CheckBackendArgs>();
  Verb verb =
      cli.app.add_verb("check-backend", "train a few steps and compare every op with the double-precision reference");
  verb.add_option("config", args->config, "configuration file; use a small one, the reference is slow").required();
  verb.add_option("--set", args->overrides, "override a key: a.b=value (may repeat)").one_value();
  verb.add_option("--steps", args->steps, "optimizer steps")
      .show_default()
      .check(in_range(int64_t{1}, int64_t{1} << 40));
  verb.on_chosen([&cli, args] { cli.action = [args] { return check_backend(*args); }; });
}

}  // namespace athanor
