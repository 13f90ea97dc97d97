// athanor: see command/cli.cc.
#include <csignal>

#include "command/command.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader of our output that goes away must not end weeks of training
  std::signal(SIGXFSZ, SIG_IGN);  // `ulimit -f`: write() then fails with EFBIG, as it fails on a full disk
  return athanor::run_cli(argc, argv);
}
