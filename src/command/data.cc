// athanor data info|verify: thin wrappers of data/report.h (data dump: data_dump.cc, data images: data_images.cc).
#include <memory>

#include "command/command.h"
#include "data/report.h"

namespace athanor {
namespace {

void add_report(Cli& cli, Verb parent, const char* name, const char* help,
                DataInfo (*report)(const ShardReportOptions&)) {
  auto args = std::make_shared<ShardReportOptions>();
  Verb verb = parent.add_verb(name, help);
  verb.add_option("files", args->path_globs, "token shards, or patterns").required();
  verb.add_option("--dtype", args->dtype, "token type of headerless shards: uint16, uint32, ...").show_default();
  verb.add_option("--tokenizer", args->tokenizer,
                  "tokenizer file or folder; default: the descriptor next to the shards, if any");
  verb.add_option("--vocab-size", args->vocab_size,
                  "upper bound of token ids; default: the tokenizer's vocabulary size")
      .check(positive());
  if (report == data_info) {
    verb.add_option("--eod-id", args->eod_id, "end-of-document token; default: the tokenizer's").check(non_negative());
    verb.add_flag("--ngram", args->ngram, "also report losses of n-gram models, a baseline for training");
    verb.add_option("--ngram-valid", args->ngram_valid_glob, "shards to evaluate the n-gram models on")
        .needs("--ngram");
  }
  verb.on_chosen([&cli, args, report] {
    cli.action = [args, report] {
      const DataInfo info = report(*args);
      print(info.text);
      return info.sound ? Exit::done : Exit::error;
    };
  });
}

}  // namespace

void add_data(Cli& cli) {
  Verb verb = cli.app.add_verb("data", "look at token shards, make image shards");
  verb.require_verb();
  add_report(cli, verb, "info",
             "print counts, documents, frequencies, an excerpt and problems; exit code 1 if there are any", data_info);
  add_report(cli, verb, "verify", "read every token once and report every problem", [](const ShardReportOptions& o) {
    return DataInfo{data_verify(o), true};
  });
  add_data_samples(cli, verb);
  add_data_images(cli, verb);
}

}  // namespace athanor
