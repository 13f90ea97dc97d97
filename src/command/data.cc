// athanor tokenize and athanor data info|verify: thin covers of data/.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "command/command.h"
#include "data/report.h"
#include "data/tokenize.h"

namespace athanor {
namespace {

void add_report(Cli& cli, CLI::App* parent, const char* name, const char* help,
                std::string (*report)(const ReportOptions&)) {
  auto args = std::make_shared<ReportOptions>();
  CLI::App* verb = parent->add_subcommand(name, help);
  verb->add_option("files", args->path_globs, "token shards, or patterns")->required();
  verb->add_option("--dtype", args->dtype, "of headerless shards: uint16 or uint32")->capture_default_str();
  verb->add_option("--vocab-size", args->vocab_size,
                   "tokens must be below it; default: the tokenizer's, if a descriptor is near");
  if (report == data_info) {
    verb->add_flag("--ngram", args->ngram, "also losses of n-gram models, which a trained model must beat");
    verb->add_option("--ngram-valid", args->ngram_valid_glob, "shards to measure them on");
  }
  verb->callback([&cli, args, report] {
    cli.action = [args, report] {
      std::fputs(report(*args).c_str(), stdout);
      return Exit::done;
    };
  });
}

}  // namespace

void add_data(Cli& cli) {
  CLI::App* verb = cli.app.add_subcommand("data", "look at token shards");
  verb->require_subcommand(1);
  add_report(cli, verb, "info", "counts, frequencies, an excerpt, problems", data_info);
  add_report(cli, verb, "verify", "read every token once and report all that is wrong", data_verify);
}

void add_tokenize(Cli& cli) {
  auto args = std::make_shared<TokenizeOptions>();
  CLI::App* verb = cli.app.add_subcommand("tokenize", "turn text files into token shards with a held-out part");
  verb->add_option("--input", args->inputs, "text files, each one document")->required();
  verb->add_option("--output-prefix", args->output_prefix,
                   "shards are PREFIX_train_000000.bin, PREFIX_valid_000000.bin, ...")
      ->required();
  verb->add_option("--tokenizer", args->tokenizer, "byte")->capture_default_str();
  verb->add_option("--valid-every", args->valid_every, "every so many-th block is held out; 0: none")
      ->capture_default_str();
  verb->add_option("--block", args->block, "size of a block in bytes")->capture_default_str();
  verb->add_option("--shard-tokens", args->shard_tokens, "most tokens in a shard")->capture_default_str();
  verb->add_flag("--overwrite", args->overwrite, "replace shards of this prefix");
  verb->callback([&cli, args] {
    cli.action = [args] {
      std::fputs(tokenize(*args).summary.c_str(), stdout);
      return Exit::done;
    };
  });
}

}  // namespace athanor
