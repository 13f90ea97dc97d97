#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/version.h"
#include "command/command.h"

namespace athanor {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 error, 2 usage or config, 3 diverged, 4 peer lost, 85 checkpointed: start again.";

std::string version_text() {
  const Version v = program_version();
  return cat("athanor ", v.version, "\ncommit   ", v.commit, "\ncompiler ", v.compiler, " (", v.build, ")");
}

// Every error leaves through here: one line on stderr, one exit code.
Exit guarded(const Action& action) {
  try {
    return action();
  } catch (const Error& e) {
    log::error(e.what());
    return e.code();
  } catch (const std::bad_alloc&) {
    log::error("out of memory: the process could not get more; lower memory_limit_gib or free memory on this machine");
    return Exit::error;
  } catch (const std::exception& e) {
    log::error("unexpected: ", e.what());
    return Exit::error;
  }
}

}  // namespace

int run_cli(int argc, char** argv) {
  CLI::App app("athanor: pretrains GPT-2- and Llama-family language models from token shards", "athanor");
  app.footer(kExitCodes);
  app.require_subcommand(1);
  app.set_version_flag("--version", version_text());
  app.set_help_all_flag("--help-all", "help of all subcommands");
  Action action;
  Cli cli{Verb(&app), action, {argv, argv + argc}};
  using Add = void (*)(Cli&);
  std::vector<Add> verbs = {add_train,  add_launch,     add_plan,          add_eval,       add_sample,
                            add_config, add_tokenize,   add_data,          add_checkpoint, add_import,
                            add_export, add_range_test, add_report,        add_scaling,    add_sweep,
                            add_logits, add_bench,      add_check_backend, add_devices};
  // What launch runs begins with a verb too, which must not be taken for a second one of this command line.
  if (argc > 1 && std::string_view(argv[1]) == "launch") verbs = {add_launch};
  for (const Add add : verbs) add(cli);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? int(Exit::done) : int(Exit::usage);
  }
  return int(guarded(action));
}

}  // namespace athanor
