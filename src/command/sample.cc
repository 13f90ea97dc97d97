// athanor sample --checkpoint DIR --prompt TEXT: continuations of one prompt, streamed, or of a file of prompts.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/escape.h"
#include "base/file.h"
#include "base/json.h"
#include "command/command.h"
#include "command/machine.h"
#include "data/json_line.h"
#include "infer/sampler.h"
#include "infer/stop_text.h"
#include "tokenizer/load.h"
#include "train/setup.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

struct SampleArgs {
  std::string checkpoint, prompt, prompts_file, precision = "fp32";
  std::vector<std::string> stops;
  int64_t max_tokens = 256, threads = 0;
  bool json = false, averages = false;
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

// One prompt a line, lines without one left out; in files named .jsonl the member "prompt" of each line, so that a
// prompt may hold line ends.
std::vector<std::string> read_prompts(const std::string& path) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  const std::string text = read_all(open_file(path, O_RDONLY), kMaxBytes, path);  // a pipe will do
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

struct Prompt {
  std::string text;
  std::vector<int32_t> tokens;
};

std::vector<Prompt> encode(const std::vector<std::string>& texts, const Tokenizer& tokenizer, const ModelConfig& model,
                           const std::string& folder) {
  std::vector<Prompt> prompts;
  for (const std::string& text : texts) {
    Prompt p{text, tokenizer.encode(text)};
    if (p.tokens.empty()) p.tokens.push_back(tokenizer.eod_id());  // a text begins after the end of another
    for (const int32_t token : p.tokens)
      if (token >= model.vocab_size)
        throw Error(cat(folder, ": the prompt has token ", token, ", the model's vocabulary ends before ",
                        model.vocab_size, ": this is another model's tokenizer"),
                    Exit::usage);
    if (int64_t(p.tokens.size()) >= model.max_position_embeddings)
      throw Error(cat("sample: prompt ", prompts.size() + 1, " has ", p.tokens.size(), " tokens, the model sees ",
                      model.max_position_embeddings, "; shorten it"),
                  Exit::usage);
    prompts.push_back(std::move(p));
  }
  return prompts;
}

// Ids that the tokenizer has a text for. A model's vocabulary may be padded beyond its tokenizer's, and tokenizers have
// unused ids; neither must be drawn.
std::vector<bool> drawable(const Tokenizer& tokenizer, int64_t vocab_size) {
  std::vector<bool> ok(size_t(vocab_size), false);
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    try {
      tokenizer.decode({&id, 1});
      ok[size_t(id)] = true;
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): an id without text
    }
  }
  return ok;
}

struct Continuation {
  std::string text;
  int64_t tokens = 0;
  const char* stopped_by = "length";  // "eod", "stop"
};

class Writer {
 public:
  Writer(const SampleArgs& args, const Tokenizer& tokenizer, Sampler& sampler)
      : args_(args),
        tokenizer_(tokenizer),
        sampler_(sampler),
        drawable_(drawable(tokenizer, sampler.model().config().vocab_size)) {}

  // `show` gets the text piece by piece.
  Continuation go_on(const Prompt& prompt, const SamplingOptions& sampling,
                     const std::function<void(std::string_view)>& show) {
    Continuation out;
    StopText stop(args_.stops);
    const auto pass = [&](std::string_view piece) {
      out.text += piece;
      show(piece);
    };
    std::span<const float> logits = sampler_.prompt(prompt.tokens);
    for (uint64_t draw = 0;; ++draw) {
      require_finite_logits(logits, int64_t(logits.size()));
      masked_.assign(logits.begin(), logits.end());
      for (size_t id = 0; id < masked_.size(); ++id)
        if (!drawable_[id]) masked_[id] = -std::numeric_limits<float>::infinity();
      const int32_t token = choose_token(masked_, sampling, draw);
      if (token == tokenizer_.eod_id()) {
        out.stopped_by = "eod";
        break;
      }
      ++out.tokens;
      const bool begins = draw == 0 && prompt.text.empty();
      pass(stop.add(tokenizer_.decode({&token, 1}, begins ? TextPlace::after_token : TextPlace::inside)));
      if (stop.found()) {
        out.stopped_by = "stop";
        return out;
      }
      if (out.tokens == args_.max_tokens) break;
      logits = sampler_.next(token);
    }
    pass(stop.rest());
    return out;
  }

 private:
  const SampleArgs& args_;
  const Tokenizer& tokenizer_;
  Sampler& sampler_;
  std::vector<bool> drawable_;  // [V]
  std::vector<float> masked_;   // [V]
};

// Text of models and files to standard output: as it is into files and pipes, with control characters escaped on a
// terminal. Tokens may end in the middle of a character: such bytes wait for the next.
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
  // Bytes at the end that may begin a character.
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

Exit sample(const SampleArgs& args) {
  const ModelFolder from(args.checkpoint, args.averages);
  const std::string& folder = from.path();
  const ModelConfig& model = from.config();
  const auto tokenizer = load_tokenizer(folder);
  std::vector<std::string> texts(1, args.prompt);
  if (!args.prompts_file.empty()) texts = read_prompts(args.prompts_file);
  const std::vector<Prompt> prompts = encode(texts, *tokenizer, model, folder);
  size_t longest = 0;
  for (const Prompt& p : prompts) longest = std::max(longest, p.tokens.size());
  const int64_t capacity = std::min(model.max_position_embeddings, int64_t(longest) + args.max_tokens);
  Config config;
  config.threads = args.threads;
  Machine machine(config, {}, WithoutLibraries::use_cpu);
  Sampler sampler(model, make_recipe(args.precision, DType::f32), machine.backend(), capacity);
  sampler.memory().require_fits(memory_capacity(config, machine.backend().device),
                                runtime_reserve(config, machine.backend().device));
  sampler.commit();
  load_weights(sampler.model().params(), machine.backend().device, from);
  Writer writer(args, *tokenizer, sampler);
  TextOutput output;
  for (size_t i = 0; i < prompts.size(); ++i) {
    SamplingOptions sampling = args.sampling;
    sampling.seed += i;
    if (!args.json) output.write(prompts[i].text);
    const Continuation c =
        writer.go_on(prompts[i], sampling, [&](std::string_view piece) { args.json ? void() : output.write(piece); });
    if (args.json) {
      const nlohmann::ordered_json line = {{"prompt", prompts[i].text},
                                           {"text", c.text},
                                           {"tokens", c.tokens},
                                           {"stopped_by", c.stopped_by},
                                           {"seed", sampling.seed}};
      output.write(json_text(line));
    }
    output.end_line();
  }
  return Exit::done;
}

void add_drawing(Verb verb, SamplingOptions& sampling) {
  verb.add_option("--temperature", sampling.temperature, "0: always the most likely token")
      .show_default()
      .check(non_negative());
  verb.add_option("--top-k", sampling.top_k, "sample from the k most likely tokens; 0: all")
      .show_default()
      .check(non_negative());
  verb.add_option("--top-p", sampling.top_p, "sample from the fewest tokens with this total probability")
      .show_default()
      .check(in_range(0.0, 1.0));
  verb.add_option("--min-p", sampling.min_p,
                  "sample from tokens with at least this share of the most likely one's probability; 0: all")
      .show_default()
      .check(in_range(0.0, 1.0));
  verb.add_option("--seed", sampling.seed, "same seed, same text; the second prompt of a file has the next seed, ...")
      .show_default();
}

}  // namespace

void add_sample(Cli& cli) {
  auto args = std::make_shared<SampleArgs>();
  Verb verb = cli.app.add_verb("sample", "continue a text with a trained model");
  verb.add_option("--checkpoint", args->checkpoint, "checkpoint folder, or run folder (newest checkpoint)").required();
  verb.add_flag("--average,--ema", args->averages,
                "the averages of a checkpoint's weights (ema_decay, tail_average_start) instead of the weights");
  Option one = verb.add_option("--prompt", args->prompt, "text to continue");
  verb.add_option("--prompts", args->prompts_file, "file of prompts: one per line, or .jsonl with a member \"prompt\"")
      .excludes(one);
  verb.add_flag("--json", args->json,
                "print one JSON object per prompt: prompt, text, tokens, stopped_by (length, eod or stop), seed");
  verb.add_option("--stop", args->stops, "end before this text (may repeat)").one_value();
  verb.add_option("--max-tokens", args->max_tokens,
                  "maximum number of tokens to add; when the model's context is full, its last half is kept")
      .show_default()
      .check(positive());
  add_drawing(verb, args->sampling);
  verb.add_option("--precision", args->precision, "fp32, bf16 or fp16")
      .show_default()
      .check(one_of({"fp32", "bf16", "fp16"}));
  verb.add_option("--threads", args->threads, "0: all cores this process may use").show_default().check(non_negative());
  verb.on_chosen([&cli, args] { cli.action = [args] { return sample(*args); }; });
}

}  // namespace athanor
