// athanor checkpoint list|inspect|verify|consolidate
#include <cstdio>
#include <memory>

#include "checkpoint/store.h"
#include "command/command.h"

namespace athanor {
namespace {

void add_verb(Cli& cli, Verb parent, const char* name, const char* help, Exit (*run)(const std::string&)) {
  auto path = std::make_shared<std::string>();
  Verb verb = parent.add_verb(name, help);
  verb.add_option("folder", *path, "the folder").required();
  verb.on_chosen([&cli, path, run] { cli.action = [path, run] { return run(*path); }; });
}

// Prints the checkpoints. "whole": every byte was verified; "present": all files have the right size.
Exit list(const std::string& root, Depth depth) {
  auto all = list_checkpoints(root);
  const size_t steps = all.size();
  for (const CheckpointInfo& c : list_diverged(root)) all.push_back(c);
  if (all.empty())
    throw Error(
        cat(root, ": no checkpoints in this folder; expected step-NNNNNNNN folders, as `save` of a config makes them"));
  for (size_t i = 0; i < all.size(); ++i) {
    const Verification v = verify_checkpoint(all[i].path, depth);
    const std::string found = v.ok ? depth == Depth::sizes ? "present" : "whole" : v.problem;
    std::printf("%10lld  %s  %s%s\n", static_cast<long long>(all[i].step), all[i].path.c_str(), found.c_str(),
                i >= steps        ? "; diverged: not resumed from automatically"
                : all[i].given_up ? "; abandoned: the run went back to an earlier step"
                                  : "");
  }
  return Exit::done;
}

void add_list(Cli& cli, Verb parent) {
  struct Args {
    std::string root;
    bool verify = false;
  };
  auto args = std::make_shared<Args>();
  Verb verb = parent.add_verb("list", "list the checkpoints of a save folder and their problems");
  verb.add_option("folder", args->root, "the folder").required();
  verb.add_flag("--verify", args->verify,
                "verify every checksum and print \"whole\"; without it manifest and sizes, \"present\"");
  verb.on_chosen([&cli, args] {
    cli.action = [args] { return list(args->root, args->verify ? Depth::checksums : Depth::sizes); };
  });
}

// Refuses a run's folder where one of its checkpoints is expected, which would otherwise be called damaged.
void require_checkpoint(const std::string& folder) {
  require_folder(folder);
  const auto all = list_checkpoints(folder);
  if (!all.empty())
    throw Error(
        cat(folder, ": expected a checkpoint, found the folder of a run: take one in it, such as ", all.back().path),
        Exit::usage);
}

void add_inspect(Cli& cli, Verb parent) {
  struct Args {
    std::string folder;
    bool zeros = false;
  };
  auto args = std::make_shared<Args>();
  Verb verb = parent.add_verb("inspect", "files, tensors and state of one checkpoint");
  verb.add_option("folder", args->folder, "the folder").required();
  verb.add_flag("--zeros", args->zeros, "read all tensors and print their fraction of zeros");
  verb.on_chosen([&cli, args] {
    cli.action = [args] {
      require_checkpoint(args->folder);
      print(inspect_checkpoint(args->folder, args->zeros));
      return Exit::done;
    };
  });
}

Exit verify(const std::string& folder) {
  require_checkpoint(folder);
  const Verification v = verify_checkpoint(folder, Depth::checksums);
  if (!v.ok) throw Error(cat(folder, ": damaged: ", v.problem));
  print(folder, ": all checksums agree (", v.manifest.files.size(), " files, ", v.manifest.tensors.size(),
        " tensors)\n");
  return Exit::done;
}

void add_consolidate(Cli& cli, Verb parent) {
  struct Args {
    std::string from, to;
  };
  auto args = std::make_shared<Args>();
  Verb verb =
      parent.add_verb("consolidate", "merge the shards of several ranks into the files that one rank would write");
  verb.add_option("folder", args->from, "the checkpoint (step-NNNNNNNN)").required();
  verb.add_option("save", args->to, "save folder to write to; a run can resume from it").required();
  verb.on_chosen([&cli, args] {
    cli.action = [args] {
      require_checkpoint(args->from);
      print(consolidate_checkpoint(args->from, args->to), "\n");
      return Exit::done;
    };
  });
}

}  // namespace

void add_checkpoint(Cli& cli) {
  Verb verb = cli.app.add_verb("checkpoint", "look at checkpoints");
  verb.require_verb();
  add_list(cli, verb);
  add_inspect(cli, verb);
  add_consolidate(cli, verb);
  add_verb(cli, verb, "verify", "read every byte and compare with the checksums", verify);
}

}  // namespace athanor
