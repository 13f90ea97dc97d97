// athanor checkpoint list|inspect|verify|consolidate
#include <cstdio>
#include <memory>

#include "checkpoint/consolidate.h"
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

Exit list(const std::string& root) {
  const auto all = list_checkpoints(root);
  if (all.empty())
    throw Error(
        cat(root, ": no checkpoints in this folder; expected step-NNNNNNNN folders, as `save` of a config makes them"));
  for (const CheckpointInfo& c : all) {
    const Verification v = verify_checkpoint(c.path, Depth::sizes);
    std::printf("%10lld  %s  %s\n", static_cast<long long>(c.step), c.path.c_str(), v.ok ? "whole" : v.problem.c_str());
  }
  return Exit::done;
}

Exit inspect(const std::string& folder) {
  std::fputs(inspect_checkpoint(folder).c_str(), stdout);
  return Exit::done;
}

Exit verify(const std::string& folder) {
  const Verification v = verify_checkpoint(folder, Depth::checksums);
  if (!v.ok) throw Error(cat(folder, ": damaged: ", v.problem));
  std::printf("%s: every byte is as written (%zu files, %zu tensors)\n", folder.c_str(), v.manifest.files.size(),
              v.manifest.tensors.size());
  return Exit::done;
}

void add_consolidate(Cli& cli, Verb parent) {
  struct Args {
    std::string from, to;
  };
  auto args = std::make_shared<Args>();
  Verb verb = parent.add_verb("consolidate", "write one that several ranks saved in parts as one rank would");
  verb.add_option("folder", args->from, "the checkpoint (step-NNNNNNNN)").required();
  verb.add_option("save", args->to, "save folder to write it to; a run can go on from there").required();
  verb.on_chosen([&cli, args] {
    cli.action = [args] {
      std::printf("%s\n", consolidate_checkpoint(args->from, args->to).c_str());
      return Exit::done;
    };
  });
}

}  // namespace

void add_checkpoint(Cli& cli) {
  Verb verb = cli.app.add_verb("checkpoint", "look at checkpoints");
  verb.require_verb();
  add_verb(cli, verb, "list", "checkpoints of a save folder and whether they are whole", list);
  add_verb(cli, verb, "inspect", "files, tensors and state of one checkpoint", inspect);
  add_consolidate(cli, verb);
  add_verb(cli, verb, "verify", "read every byte and compare with the checksums", verify);
}

}  // namespace athanor
