// athanor import DIR OUT: imports a model of another program, verified and with checksums.
#include <memory>

#include "base/format.h"
#include "base/version.h"
#include "command/command.h"
#include "command/float_names.h"
#include "config/choices.h"
#include "convert/hf_folder.h"

namespace athanor {
namespace {

struct ImportArgs {
  std::string from, to, dtype = "same";
  bool follow_links = false;
};

Exit import_model(const ImportArgs& args) {
  const ModelFolder model(args.from, false, args.follow_links ? Links::anywhere : Links::inside);
  const ProgramVersion program = program_version();
  const HfFolderOptions options{.dtype = float_named(args.dtype),
                                .manifest = true,
                                .checkpoint = {.program_version = program.version, .program_commit = program.commit}};
  const int64_t bytes = write_hf_folder(model, args.to, options);
  print(args.from, ": ", name_of(model.config().model_type), ", ",
        format_count(double(parameter_count(model.config()))), " parameters, ", format_bytes(size_t(bytes)), " in ",
        args.to, "\n");
  return Exit::done;
}

}  // namespace

void add_import(Cli& cli) {
  auto args = std::make_shared<ImportArgs>();
  Verb verb = cli.app.add_verb(
      "import", "import a Hugging Face model: check it and write it with canonical names, checksums and tokenizer");
  verb.add_option("folder", args->from,
                  "folder with config.json and safetensors (one file, or shards with their index)")
      .required();
  verb.add_option("out", args->to, "new folder, for train --init-from, sample --checkpoint and export").required();
  verb.add_option("--dtype", args->dtype, "same: as in the files; or f32, bf16, f16")
      .show_default()
      .check(one_of(float_names()));
  verb.add_flag("--follow-links", args->follow_links,
                "also read files that are links to outside the folder (git-annex, dvc): only if you trust the folder");
  verb.on_chosen([&cli, args] { cli.action = [args] { return import_model(*args); }; });
}

}  // namespace athanor
