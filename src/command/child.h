// Runs this program as a child process in the foreground, and forwards stop signals to it.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "config/config.h"

namespace athanor {

struct ChildEnd {
  int code = 0;          // exit code; 128 + number if ended by a signal
  bool stopped = false;  // this process received a stop signal while the child ran
};

// Path of this program's executable.
std::string own_program();

// Called in a forked child: the kernel sends it SIGTERM when its parent ends, even by SIGKILL, so that no run outlives
// the command that supervises it.
void end_with_parent(pid_t parent);

// Waits up to kSecondsToStop until no other process writes to a run's folder: a killed command may have left a run that
// is still saving its last step.
void await_free_run(const std::string& folder);

// Throws Error(usage) if the folder has a run with other values than `now`, except those that may change freely on
// resume: a finished run would keep its old results, and a sweep or comparison would show them as those of `now`.
void require_same_values(const std::string& folder, const Config& now);

// Appends stdout and stderr to `log`. The child has its own process group, so that a signal from the terminal reaches
// it only once, forwarded by this process.
ChildEnd run_child(const std::vector<std::string>& command, const std::string& log);

}  // namespace athanor
