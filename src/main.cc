// athanor: see command/cli.cc.
#include <fcntl.h>

#include <csignal>
#include <cstdlib>

#include "command/command.h"

namespace {

// A standard stream that the caller has closed (`>&-`) stays unusable, and fails as such: else the next file that is
// opened would take its number, and messages would be written into a checkpoint.
void keep_standard_streams() {
  for (const int fd : {0, 1, 2})
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a reader of our output that goes away must not end weeks of training
  std::signal(SIGXFSZ, SIG_IGN);  // `ulimit -f`: write() then fails with EFBIG, as it fails on a full disk
  return athanor::run_cli(argc, argv);
}
