#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

#include "base/escape.h"
#include "base/log.h"
#include "base/version.h"
#include "command/command.h"
#include "config/fields.h"

namespace athanor {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 error, 2 usage or config, 3 diverged, 4 peer lost, 85 checkpointed: start again, 128 + N "
    "ended "
    "by signal N.";

constexpr size_t kLongestMessage = 1000;

std::string version_text() {
  const ProgramVersion v = program_version();
  return cat("athanor ", v.version, "\ncommit   ", v.commit, "\ncompiler ", v.compiler, " (", v.build, ")");
}

// All errors pass through here: one line on stderr, one exit code.
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

// Reports an error if the output could not be written to stdout. If the reader went away (`athanor config | head`), the
// exit code is that of a program ended by SIGPIPE.
int judge_output(int code) {
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  int error = flushed ? 0 : errno;
  if (flushed && std::ferror(stdout) == 0) return code;
  pollfd reader{STDOUT_FILENO, POLLOUT, 0};
  if (error == 0 && poll(&reader, 1, 0) > 0 && (reader.revents & POLLERR) != 0) error = EPIPE;
  std::clearerr(stdout);
  if (code != 0) return code;
  if (error == EPIPE) return 128 + SIGPIPE;
  log::error("standard output cannot be written", error == 0 ? "" : cat(": ", std::strerror(error)),
             ": the output is incomplete; free space, or redirect it to a file that can be written");
  return int(Exit::error);
}

std::vector<std::string_view> names_of(const CLI::App& app, std::deque<std::string>& kept) {
  std::vector<std::string_view> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(kept.emplace_back(verb->get_name()));
  return names;
}
std::vector<std::string_view> options_of(const CLI::App& app, std::deque<std::string>& kept) {
  std::vector<std::string_view> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back(kept.emplace_back("--" + name));
  return names;
}

// Explains an error in the command line better than the parser: a word where a verb is expected, an option that the
// verb does not have. Empty if there is neither.
std::string misspelt(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  std::string path = "athanor";
  std::deque<std::string> kept;
  const auto advice = [](const std::string& near, const std::string& otherwise) {
    return near.empty() ? otherwise : cat("did you mean \"", near, "\"?");
  };
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.starts_with("--") && word.size() > 2) {
      const std::string name = word.substr(0, word.find('='));
      const auto known = options_of(*at, kept);
      if (std::find(known.begin(), known.end(), name) == known.end())
        return cat(path, ": there is no option \"", name, "\"; ",
                   advice(nearest(name, known), cat("`", path, " --help` lists all")));
      if (!at->get_option(name)->get_expected_min() || word.size() > name.size()) continue;
      ++i;  // skips the option's value
    } else if (at->get_require_subcommand_min() > 0 && !word.starts_with("-")) {
      const auto verbs = names_of(*at, kept);
      if (std::find(verbs.begin(), verbs.end(), word) == verbs.end())
        return cat(path, ": there is no verb \"", word, "\"; ",
                   advice(nearest(word, verbs), cat("`", path, " --help` lists all")));
      at = at->get_subcommand(word);
      path += " " + word;
    }
  }
  return at->get_require_subcommand_min() > 0 ? cat(path, ": expected a verb; `", path, " --help` lists all") : "";
}

// Makes --help-all print the options of nested verbs too, each under its whole name, such as "bench step".
class HelpOfAll : public CLI::Formatter {
 public:
  std::string make_expanded(const CLI::App* verb) const override {
    const auto nested = verb->get_subcommands([](const CLI::App*) { return true; });
    if (nested.empty()) return Formatter::make_expanded(verb);
    std::string text;
    for (const CLI::App* inner : nested) text += cat(verb->get_name(), " ", Formatter::make_expanded(inner), "\n");
    return text;
  }
};

// Parses the words: sets the action, or returns the exit code after the parser has printed everything.
std::optional<int> read_words(const std::vector<std::string>& words, Action& action) {
  CLI::App app("athanor: pretrains GPT-2- and Llama-family language models from token shards", "athanor");
  app.formatter(std::make_shared<HelpOfAll>());  // before the verbs, which copy it
  app.footer(kExitCodes);
  app.require_subcommand(1);
  app.set_version_flag("--version", version_text());
  app.set_help_all_flag("--help-all", "help of all subcommands");
  Cli cli{Verb(&app), action, words};
  using Add = void (*)(Cli&);
  std::vector<Add> verbs = {add_train,    add_launch,        add_plan,       add_eval,    add_sample, add_config,
                            add_tokenize, add_data,          add_checkpoint, add_import,  add_export, add_lr_find,
                            add_report,   add_scaling,       add_sweep,      add_compare, add_logits, add_cache_logits,
                            add_bench,    add_check_backend, add_devices};
  // The command that launch runs begins with a verb, too, which must not be parsed as a second verb.
  if (words.size() > 1 && words[1] == "launch") verbs = {add_launch};
  for (const Add add : verbs) add(cli);
  try {
    std::vector<std::string> backwards(words.rbegin(), words.rend() - (words.empty() ? 0 : 1));  // as CLI11 expects
    app.parse(std::move(backwards));
    return std::nullopt;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help and --version
    const bool unknown = dynamic_cast<const CLI::ExtrasError*>(&e) || dynamic_cast<const CLI::RequiredError*>(&e);
    const std::string better = unknown ? misspelt(app, words) : "";
    std::string said = escape_controls(better.empty() ? e.what() : better);
    if (said.size() > kLongestMessage) said = said.substr(0, kLongestMessage) + "...";  // the message quotes the words
    std::fprintf(stderr, "%s\nRun with --help for more information.\n", said.c_str());
    return int(Exit::usage);
  }
}

}  // namespace

std::optional<int> refuse_words(const std::vector<std::string>& words) {
  Action action;
  return read_words(words, action);
}

int run_cli(int argc, char** argv) {
  Action action;
  if (const std::optional<int> code = read_words({argv, argv + argc}, action)) return judge_output(*code);
  return judge_output(int(guarded(action)));
}

}  // namespace athanor
