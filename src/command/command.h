// The command line: one file per verb adds its subcommand and its action; cli.cc parses, runs the action, and turns
// every Error into a message and an exit code.
#pragma once
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "command/options.h"

namespace athanor {

// Prints the parts to standard output, through operator<<.
template <class... A>
void print(const A&... parts) {
  std::fputs(cat(parts...).c_str(), stdout);
}

// Set by the chosen subcommand's callback.
using Action = std::function<Exit()>;

struct Cli {
  Verb app;
  Action& action;
  std::vector<std::string> command_line;
};

void add_train(Cli&);
void add_launch(Cli&);
void add_plan(Cli&);
void add_eval(Cli&);
void add_sample(Cli&);
void add_config(Cli&);
void add_tokenize(Cli&);
void add_data(Cli&);
void add_data_samples(Cli&, Verb data);
void add_data_images(Cli&, Verb data);
void add_checkpoint(Cli&);
void add_bench(Cli&);
void add_bench_device(Cli&, Verb bench);
void add_bench_comm(Cli&, Verb bench);
void add_bench_gemm(Cli&, Verb bench);
void add_bench_attention(Cli&, Verb bench);
void add_bench_decode(Cli&, Verb bench);
void add_check_backend(Cli&);
void add_devices(Cli&);
void add_import(Cli&);
void add_export(Cli&);
void add_logits(Cli&);
void add_cache_logits(Cli&);
void add_lr_find(Cli&);
void add_report(Cli&);
void add_scaling(Cli&);
void add_sweep(Cli&);
void add_compare(Cli&);

// Parses a command line (program name first) without running it; nullopt: it is valid. Otherwise it has printed the
// error or the requested help, and returns the exit code.
std::optional<int> refuse_words(const std::vector<std::string>& words);
// Parses and runs a command line; returns the process exit code.
int run_cli(int argc, char** argv);

}  // namespace athanor
