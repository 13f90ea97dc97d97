// athanor sample --checkpoint DIR --prompt TEXT: streams a continuation to stdout.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/file.h"
#include "command/command.h"
#include "command/machine.h"
#include "tokenizer/load.h"
#include "train/sampler.h"
#include "train/setup.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

struct Args {
  std::string checkpoint, prompt, precision = "fp32";
  int64_t max_tokens = 256, threads = 0;
  SamplingOptions sampling;
};

// A checkpoint folder, or a run folder: then its newest whole checkpoint.
std::string resolve(const std::string& folder) {
  if (list_checkpoints(folder).empty()) return folder;
  const auto newest = newest_valid(folder);
  if (!newest)
    throw Error(cat(folder, ": no checkpoint in it is whole; `athanor checkpoint list ", folder, "` says why"));
  return newest->path;
}

Exit sample(const Args& args) {
  const std::string folder = resolve(args.checkpoint);
  const ModelConfig model = load_model_config(folder + "/config.json");
  const auto tokenizer = load_tokenizer(folder);
  std::vector<int32_t> tokens = tokenizer->encode(args.prompt);
  if (tokens.empty()) tokens.push_back(tokenizer->eod_id());  // a text begins after the end of another
  for (const int32_t token : tokens)
    if (token >= model.vocab_size)
      throw Error(cat(folder, ": the prompt has token ", token, ", the model's vocabulary ends before ",
                      model.vocab_size, ": this is another model's tokenizer"),
                  Exit::usage);
  const int64_t room = model.max_position_embeddings;
  if (int64_t(tokens.size()) >= room)
    throw Error(cat("sample: the prompt has ", tokens.size(), " tokens, the model sees ", room, "; shorten the prompt"),
                Exit::usage);
  const int64_t capacity = std::min(room, int64_t(tokens.size()) + args.max_tokens);
  Config config;
  config.threads = args.threads;
  Machine machine(config);
  Sampler sampler(model, make_recipe(args.precision, DType::f32), machine.backend(), int64_t(tokens.size()), capacity);
  sampler.memory().require_fits(memory_capacity(config, machine.backend().device), runtime_reserve(config));
  sampler.commit();
  load_weights(sampler.model().params(), machine.backend().device, folder);
  std::fputs(args.prompt.c_str(), stdout);
  std::vector<float> logits = sampler.prompt(tokens);
  for (uint64_t draw = 0;; ++draw) {
    // A model's vocabulary may be padded beyond its tokenizer's; what was padded has no text.
    logits.resize(std::min(logits.size(), size_t(tokenizer->vocab_size())));
    const int32_t token = choose_token(logits, args.sampling, draw);
    if (token == tokenizer->eod_id()) break;
    const std::string text = tokenizer->decode({&token, 1});
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    if (sampler.length() == sampler.capacity() || int64_t(draw) + 1 == args.max_tokens) break;
    logits = sampler.next(token);
  }
  std::fputs("\n", stdout);
  return Exit::done;
}

}  // namespace

void add_sample(Cli& cli) {
  auto args = std::make_shared<Args>();
  CLI::App* verb = cli.app.add_subcommand("sample", "continue a text with a trained model");
  verb->add_option("--checkpoint", args->checkpoint, "checkpoint folder, or run folder (newest checkpoint)")
      ->required();
  verb->add_option("--prompt", args->prompt, "text to continue");
  verb->add_option("--max-tokens", args->max_tokens, "tokens to add at most")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  verb->add_option("--temperature", args->sampling.temperature, "0: always the likeliest token")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--top-k", args->sampling.top_k, "draw among the k likeliest; 0: all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--top-p", args->sampling.top_p, "draw among the fewest that have this probability")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--seed", args->sampling.seed, "same seed, same text")->capture_default_str();
  verb->add_option("--precision", args->precision, "fp32, bf16 or fp16")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  verb->add_option("--threads", args->threads, "0: all cores this process may use")->capture_default_str();
  verb->callback([&cli, args] { cli.action = [args] { return sample(*args); }; });
}

}  // namespace athanor
