// athanor sample --checkpoint DIR --prompt TEXT: prints continuations of prompts, streamed in order.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/escape.h"
#include "base/file.h"
#include "base/json.h"
#include "base/thread.h"
#include "command/command.h"
#include "command/machine.h"
#include "convert/end_tokens.h"
#include "convert/hf_folder.h"
#include "data/json_line.h"
#include "data/text_encoding.h"
#include "infer/continue_texts.h"
#include "tokenizer/load.h"
#include "train/setup.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

struct SampleArgs {
  std::string checkpoint, prompts_file, precision = "fp32", weights = kWeightsAsPrecision;
  std::vector<std::string> prompts, stops;
  int64_t max_tokens = 256, batch_size = 8, threads = 0;
  bool json = false, averages = false, allow_special = false;
  SamplingOptions sampling;
};

std::string prompt_of(std::string_view json_line) {
  try {
    std::string prompt;
    if (json_line_text(json_line, "prompt", prompt)) return prompt;
  } catch (const Error& e) {
    throw Error(e.what(), Exit::usage);
  }
  throw Error("no member \"prompt\" in this line", Exit::usage);
}

// Reads one prompt per line, skipping blank lines; in .jsonl files the key "prompt" of each line, so that a prompt may
// contain newlines.
std::vector<std::string> read_prompts(const std::string& path) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  std::string text = read_all(open_file(path, O_RDONLY), kMaxBytes, path);  // may be a pipe
  drop_byte_order_mark(text, path);
  std::vector<std::string> prompts;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == line.npos) continue;
    if (path.ends_with(".jsonl"))
      prompts.push_back(with_context(cat(path, ": line ", number), [&] { return prompt_of(line); }));
    else
      prompts.emplace_back(line);
  }
  if (prompts.empty()) throw Error(cat(path, ": holds no prompt"), Exit::usage);
  return prompts;
}

std::vector<Prompt> encode(const std::vector<std::string>& texts, const Tokenizer& tokenizer, const ModelConfig& model,
                           const std::string& folder) {
  std::vector<Prompt> prompts;
  for (const std::string& text : texts) {
    Prompt p{text, tokenizer.encode(text)};
    if (p.tokens.empty())
      p.tokens.push_back(tokenizer.eod_id());  // an empty prompt: the text begins after the end of
                                               // another document
    for (const int32_t token : p.tokens)
      if (token >= model.vocab_size)
        throw Error(cat(folder, ": the prompt has token ", token, ", expected less than the model's vocab_size ",
                        model.vocab_size, ": the tokenizer belongs to another model"),
                    Exit::usage);
    if (int64_t(p.tokens.size()) >= model.max_position_embeddings)
      throw Error(cat("sample: prompt ", prompts.size() + 1, " has ", p.tokens.size(), " tokens, the model sees ",
                      model.max_position_embeddings, "; shorten it"),
                  Exit::usage);
    prompts.push_back(std::move(p));
  }
  return prompts;
}

// Writes generated text to stdout: unchanged into files and pipes, with control characters escaped on a terminal.
// Tokens may end in the middle of a character: the bytes of an incomplete character are held back until the next write.
class TextOutput {
 public:
  void write(std::string_view text) {
    if (!terminal_) return put(text);
    held_ += text;
    const size_t whole = held_.size() - unfinished(held_);
    put(escape_controls(std::string_view(held_).substr(0, whole)));
    held_.erase(0, whole);
  }
  void end_line() {
    put(escape_controls(std::exchange(held_, "")));
    put("\n");
  }

 private:
  // Number of bytes at the end that may begin an incomplete character.
  static size_t unfinished(std::string_view text) {
    for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
      const auto byte = uint8_t(text[text.size() - back]);
      if (byte < 0x80) return 0;
      if (byte >= 0xc0) return back < (byte >= 0xf0 ? 4u : byte >= 0xe0 ? 3u : 2u) ? back : 0;
    }
    return 0;
  }
  static void put(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  const bool terminal_ = ::isatty(STDOUT_FILENO) == 1;
  std::string held_;
};

std::string json_line(const Prompt& prompt, const Continuation& c) {
  const nlohmann::ordered_json line = {
      {"prompt", prompt.text}, {"text", c.text}, {"tokens", c.tokens}, {"stopped_by", c.stopped_by}, {"seed", c.seed}};
  return json_text(line);
}

Exit sample(const SampleArgs& args) {
  const ModelFolder from(args.checkpoint, args.averages);
  const std::string& folder = from.path();
  const ModelConfig& model = from.config();
  require_language_model(model, "sample");
  const auto tokenizer = make_tokenizer({.source = tokenizer_folder(from), .allow_special = args.allow_special});
  std::vector<std::string> texts = args.prompts;
  if (texts.empty()) texts.emplace_back();
  if (!args.prompts_file.empty()) texts = read_prompts(args.prompts_file);
  const std::vector<Prompt> prompts = encode(texts, *tokenizer, model, folder);
  size_t longest = 0;
  for (const Prompt& p : prompts) longest = std::max(longest, p.tokens.size());
  const int64_t capacity = std::min(model.max_position_embeddings, int64_t(longest) + args.max_tokens);
  Config config;
  config.threads = args.threads;
  Machine machine(config, {}, WithoutLibraries::use_cpu);
  Sampler sampler(model, make_recipe(args.precision, DType::f32), machine.backend(), capacity,
                  std::min(args.batch_size, int64_t(prompts.size())), inference_weights(args.weights, machine));
  sampler.memory().require_fits(memory_capacity(config, machine.backend().device),
                                runtime_reserve(config, machine.backend().device));
  sampler.commit();
  load_weights(sampler.model().params(), machine.backend().device, from);
  TextOutput output;
  ContinuationSink sink;
  if (args.json) {
    sink = {.begin = [](const Prompt&) {},
            .piece = [](std::string_view) {},
            .end = [&](const Prompt& p, const Continuation& c) { output.write(json_line(p, c)), output.end_line(); }};
  } else {
    sink = {.begin = [&](const Prompt& p) { output.write(p.text); },
            .piece = [&](std::string_view piece) { output.write(piece); },
            .end = [&](const Prompt&, const Continuation&) { output.end_line(); }};
  }
  continue_texts(
      sampler, *tokenizer, prompts,
      {.sampling = args.sampling, .max_tokens = args.max_tokens, .stops = args.stops, .ends = end_tokens(from)}, sink);
  return Exit::done;
}

void add_drawing(Verb verb, SamplingOptions& sampling) {
  verb.add_option("--temperature", sampling.temperature, "0: always the most likely token")
      .show_default()
      .check(non_negative());
  verb.add_option("--top-k", sampling.top_k, "sample from the k most likely tokens; 0: all")
      .show_default()
      .check(non_negative());
  verb.add_option("--top-p", sampling.top_p,
                  "nucleus sampling: sample from the smallest set of tokens with this total probability")
      .show_default()
      .check(in_range(0.0, 1.0));
  verb.add_option("--min-p", sampling.min_p,
                  "sample from tokens with at least this fraction of the top probability; 0: all")
      .show_default()
      .check(in_range(0.0, 1.0));
  verb.add_option("--seed", sampling.seed,
                  "random seed: the same seed gives the same text; the n-th prompt uses seed + n - 1")
      .show_default();
}

}  // namespace

void add_sample(Cli& cli) {
  auto args = std::make_shared<SampleArgs>();
  Verb verb = cli.app.add_verb("sample", "continue a text with a trained model");
  verb.add_option("--checkpoint", args->checkpoint, "checkpoint folder, or run folder (newest checkpoint)").required();
  verb.add_flag("--average,--ema", args->averages,
                "use the averaged weights (averaging.ema_decay, averaging.tail_start)");
  Option one = verb.add_option("--prompt", args->prompts, "text to continue (may repeat)").one_value().may_be_empty();
  verb.add_option("--prompts", args->prompts_file, "file of prompts: one per line, or .jsonl with a member \"prompt\"")
      .excludes(one);
  verb.add_flag("--allow-special", args->allow_special,
                "parse special tokens in prompts as such; otherwise they are ordinary text, unless the model's shards "
                "were tokenized with --allow-special");
  verb.add_flag("--json", args->json,
                "print one JSON object per prompt: prompt, text, tokens, stopped_by (length, eod or stop), seed");
  verb.add_option("--stop", args->stops, "stop before this text (may repeat)").one_value();
  verb.add_option("--max-tokens", args->max_tokens,
                  "maximum number of new tokens; when the context is full, its last half is kept")
      .show_default()
      .check(positive());
  verb.add_option("--batch-size", args->batch_size, "prompts decoded at once, each with its own key/value cache")
      .show_default()
      .check(in_range(1, 4096));
  add_drawing(verb, args->sampling);
  verb.add_option("--precision", args->precision, "fp32, bf16 or fp16")
      .show_default()
      .check(one_of({"fp32", "bf16", "fp16"}));
  add_weights_option(verb, args->weights);
  verb.add_option("--threads", args->threads, "CPU threads; 0: all cores available")
      .show_default()
      .check(in_range(0, kMostThreads));
  verb.on_chosen([&cli, args] { cli.action = [args] { return sample(*args); }; });
}

}  // namespace athanor
