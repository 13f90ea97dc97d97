// athanor tokenize: a thin wrapper of data/tokenize.h that shows progress.
#include "data/tokenize.h"
#include "data/tokenize_chats.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include "base/log.h"
#include "base/thread.h"
#include "command/command.h"

namespace athanor {
namespace {

std::string duration(double seconds) {
  const int64_t s = std::llround(seconds);
  return s < 60     ? cat(s, " s")
         : s < 3600 ? cat(s / 60, " min ", s % 60, " s")
                    : cat(s / 3600, " h ", s % 3600 / 60, " min");
}

// Shows progress as one line that is overwritten on a terminal; elsewhere as an occasional log line.
class ProgressLine {
 public:
  ~ProgressLine() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  void operator()(const TokenizeProgress& p) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(terminal_ ? 200 : 15'000)) return;
    last_ = now;
    if (!terminal_) return log::info("tokenize: ", text_of(p));
    shown_ = true;
    std::fprintf(stderr, "\r\033[K%s", text_of(p).c_str());
    std::fflush(stderr);
  }

 private:
  static std::string text_of(const TokenizeProgress& p) {
    const double rate = p.seconds > 0 ? double(p.seconds_text_bytes) / p.seconds : 0;
    std::string text = cat(p.text_bytes / 1'000'000, " MB of text, ", p.tokens / 1'000'000, " M tokens, ",
                           int64_t(rate / 1e6), " MB/s");
    if (p.file_bytes > 0 && p.seconds_read_bytes > 0) {
      const double left = double(p.file_bytes - p.read_bytes) * p.seconds / double(p.seconds_read_bytes);
      text += cat(", ", 100 * p.read_bytes / p.file_bytes, "%, ", duration(std::max(0.0, left)), " left");
    }
    return text;
  }

  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Unescapes "
// ", "\t", "\0" and "\\" in an argument, since these characters are hard to write in a shell.
std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = i + 1 < text.size() ? text[i + 1] : 'x';
    const size_t which = text[i] == '\\' ? std::string_view("ntr0\\").find(next) : std::string_view::npos;
    out += which == std::string_view::npos ? text[i] : "\n\t\r\0\\"[which];
    i += which != std::string_view::npos;
  }
  return out;
}

struct TokenizeArgs : TokenizeOptions {
  std::string chat_template, chat_shape;
  int64_t pack = 0;
};

void add_chat_options(Verb verb, TokenizeArgs& o) {
  verb.add_option(
          "--chat-template", o.chat_template,
          "tokenize conversations (one JSON object per line) into shards with a loss mask: only answers are trained "
          "on. Template of the model: chatml, llama3, llama2, mistral, gemma, or plain (only an end-of-answer token)")
      .check(one_of(chat_template_names()));
  verb.add_option("--chat-shape", o.chat_shape,
                  "shape of conversations: messages (role, content), prompt (prompt, completion), alpaca (instruction, "
                  "input, output) or sharegpt (conversations of from, value); default: detected per line")
      .check(one_of(chat_shape_names()));
  verb.add_option("--pack", o.pack,
                  "conversations: pack whole ones into rows of this many tokens, which becomes the run's seq_length; "
                  "longer ones are truncated at the end; 0: concatenated, cut by sequence")
      .show_default()
      .check(non_negative());
}

Exit run_chats(const TokenizeArgs& o) {
  const TokenizeOptions usual;
  const char* other = o.tokenizer.allow_special                ? "--allow-special"
                      : o.output_format != usual.output_format ? "--output-format"
                      : o.shard_tokens != usual.shard_tokens   ? "--shard-tokens"
                      : !o.documents.separator.empty()         ? "--separator"
                      : o.documents.key != usual.documents.key ? "--key"
                                                               : nullptr;
  if (other)
    throw Error(cat("tokenize: ", other, " has no effect on conversations (--chat-template); leave it out"),
                Exit::usage);
  const ChatOptions options{.inputs = o.documents.inputs,
                            .output_prefix = o.output_prefix,
                            .tokenizer = o.tokenizer,
                            .form = *chat_template_named(o.chat_template),
                            .shape = chat_shape_named(o.chat_shape),
                            .pack = o.pack,
                            .valid_every = o.documents.valid_every,
                            .overwrite = o.overwrite};
  print(tokenize_chats(options));
  return Exit::done;
}

void add_options(Verb verb, TokenizeArgs& o) {
  verb.add_option("inputs,--input", o.documents.inputs,
                  "text or JSON lines, plain, gzip or zstd; parquet files; - = standard input")
      .required();
  verb.add_option("--output-prefix", o.output_prefix,
                  "output shards are PREFIX_train_000000.bin, PREFIX_val_000000.bin, ...")
      .required();
  verb.add_option("--tokenizer", o.tokenizer.source,
                  "\"byte\"; a .tiktoken rank file, tokenizer.json, SentencePiece's .model, or vocab.bpe next to "
                  "encoder.json; a folder with one")
      .show_default();
  verb.add_option("--split", o.tokenizer.split,
                  "rank files: split pattern, a name (gpt2, cl100k, llama3, qwen2, o200k) or a regular expression; "
                  "default: by the number of ranks");
  verb.add_option("--special-token", o.tokenizer.special_tokens, "rank files: TEXT=ID, for each special token");
  verb.add_option("--eod", o.tokenizer.eod, "text of the end-of-document token; default: from the tokenizer file");
  verb.add_flag("--allow-special", o.tokenizer.allow_special,
                "parse special tokens in texts as such; otherwise they are ordinary text");
  verb.add_option("--format", o.documents.format, "auto (by the name: .jsonl, .ndjson, .json), text or jsonl")
      .show_default();
  verb.add_option("--key", o.documents.key, "JSON lines: the member that holds the text; parquet: the column")
      .show_default();
  verb.add_option("--separator", o.documents.separator,
                  "text: separator of documents, with \\n and \\t; default: a file is one document");
  verb.add_option("--valid-every", o.documents.valid_every, "hold out every n-th block or document; 0: none")
      .show_default();
  verb.add_option("--block", o.documents.block,
                  "block size in bytes when a file is one document; 0: files are held out whole")
      .show_default();
  verb.add_option("--output-format", o.output_format, "llm.c, or megatron: shards with an .idx of their documents")
      .show_default();
  verb.add_option("--shard-tokens", o.shard_tokens, "maximum tokens per shard").show_default();
  verb.add_option("--threads", o.threads, "CPU threads; 0: all cores available; does not change the output")
      .show_default()
      .check(in_range(0, kMostThreads));
  verb.add_option("--save-seconds", o.save_seconds, "interval for saving progress, so that a killed run can continue")
      .show_default()
      .check(non_negative());
  verb.add_flag("--overwrite", o.overwrite, "overwrite existing shards of this prefix, including unfinished ones");
}

}  // namespace

void add_tokenize(Cli& cli) {
  auto args = std::make_shared<TokenizeArgs>();
  Verb verb = cli.app.add_verb("tokenize", "tokenize texts into shards, with a held-out part");
  add_options(verb, *args);
  add_chat_options(verb, *args);
  verb.on_chosen([&cli, args] {
    cli.action = [args] {
      if (!args->chat_template.empty()) return run_chats(*args);
      if (!args->chat_shape.empty() || args->pack > 0)
        throw Error("tokenize: --chat-shape and --pack are for conversations; give --chat-template", Exit::usage);
      TokenizeOptions options = *args;
      options.documents.separator = unescape(options.documents.separator);
      std::string summary;
      {
        ProgressLine line;
        options.progress = [&](const TokenizeProgress& p) { line(p); };
        summary = tokenize(options).summary;
      }
      print(summary);
      return Exit::done;
    };
  });
}

}  // namespace athanor
