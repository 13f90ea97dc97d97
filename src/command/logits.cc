// athanor logits MODEL OUT: writes the model's logits for random tokens, for comparison with other programs.
#include <memory>

#include "base/rng.h"
#include "base/thread.h"
#include "checkpoint/safetensors_writer.h"
#include "command/command.h"
#include "command/machine.h"
#include "infer/sampler.h"
#include "train/setup.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

struct LogitsArgs {
  std::string model, out;
  int64_t batch = 2, seed = 1, threads = 0;
  int64_t seq_length = 0;  // 0: not given
};

Exit write_logits(const LogitsArgs& args) {
  const ModelFolder folder(args.model);
  Config config;
  config.model = folder.config();
  require_language_model(config.model, "logits");
  config.threads = args.threads;
  config.precision = Precision::fp32;
  constexpr int64_t kDefaultLength = 32;
  const int64_t context = config.model.max_position_embeddings;
  if (args.seq_length > context)
    throw Error(cat("logits --seq-length: expected at most ", context, ", the model's context, got ", args.seq_length),
                Exit::usage);
  config.seq_length = args.seq_length > 0 ? args.seq_length : std::min(kDefaultLength, context);
  config.global_batch_size = config.micro_batch_size = args.batch;
  Machine machine(config);
  const Backend backend = machine.backend();
  Engine engine(config.model, engine_options(config, false), backend);
  engine.want_logits();
  engine.memory().require_fits(memory_capacity(config, backend.device), runtime_reserve(config, backend.device));
  engine.commit();
  load_weights(engine, backend.device, folder);

  std::vector<int32_t> tokens(size_t(args.batch * config.seq_length));
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] =
        int32_t(double(random_uniform(uint64_t(args.seed), stream_of("logits"), i)) * double(config.model.vocab_size));
  std::vector<float> logits = engine.logits(tokens);
  require_finite_logits(logits, config.model.vocab_size);
  const Tensor t{tokens.data(), DType::i32, {args.batch, config.seq_length}};
  const Tensor l{logits.data(), DType::f32, {args.batch, config.seq_length, config.model.vocab_size}};
  const std::vector<TensorData> tensors = {tensor_data("tokens", t), tensor_data("logits", l)};
  save_safetensors(args.out, tensors);
  print(args.out, ": tokens [", args.batch, ", ", config.seq_length, "] and their logits\n");
  return Exit::done;
}

}  // namespace

void add_logits(Cli& cli) {
  auto args = std::make_shared<LogitsArgs>();
  Verb verb =
      cli.app.add_verb("logits", "write random tokens and a model's fp32 logits, to compare with other programs");
  verb.add_option("model", args->model, "checkpoint, run folder, or folder in Hugging Face's layout").required();
  verb.add_option("out", args->out, "safetensors file to write: tokens int32 [B, T] and logits float32 [B, T, V]")
      .required();
  verb.add_option("--batch", args->batch, "sequences").show_default().check(in_range(1, 4096));
  verb.add_option("--seq-length", args->seq_length,
                  "tokens per sequence, at most the model's context; default: 32, or the context if it is less")
      .check(positive());
  verb.add_option("--seed", args->seed, "random seed of the tokens").show_default();
  verb.add_option("--threads", args->threads, "CPU threads; 0: all cores available")
      .show_default()
      .check(in_range(0, kMostThreads));
  verb.on_chosen([&cli, args] { cli.action = [args] { return write_logits(*args); }; });
}

}  // namespace athanor
