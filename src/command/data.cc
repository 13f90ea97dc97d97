// athanor data info|verify: thin covers of data/ (samples: data_samples.cc).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "command/command.h"
#include "data/report.h"

namespace athanor {
namespace {

void add_report(Cli& cli, CLI::App* parent, const char* name, const char* help,
                std::string (*report)(const ReportOptions&)) {
  auto args = std::make_shared<ReportOptions>();
  CLI::App* verb = parent->add_subcommand(name, help);
  verb->add_option("files", args->path_globs, "token shards, or patterns")->required();
  verb->add_option("--dtype", args->dtype, "type of a token in headerless shards: uint16, uint32, ...")
      ->capture_default_str();
  verb->add_option("--tokenizer", args->tokenizer,
                   "tokenizer file or folder; default: the descriptor beside the shards, if there is one");
  verb->add_option("--vocab-size", args->vocab_size, "tokens must be below it; default: the tokenizer's");
  if (report == data_info) {
    verb->add_option("--eod-id", args->eod_id, "token that ends a document; default: the tokenizer's");
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
  add_report(cli, verb, "info", "counts, documents, frequencies, an excerpt, problems", data_info);
  add_report(cli, verb, "verify", "read every token once and report all that is wrong", data_verify);
  add_data_samples(cli, verb);
}

}  // namespace athanor
