// Runs this program once more, in the foreground, and passes stop signals on to it.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace athanor {

struct ChildEnd {
  int code = 0;          // exit code; 128 + number for a signal
  bool stopped = false;  // a stop signal came to us while it ran
};

// The path of this program's file.
std::string own_program();

// Called by a forked child: when its parent ends, also by SIGKILL, the kernel sends it SIGTERM, so that no run outlives
// the command that supervises it.
void end_with_parent(pid_t parent);

// Waits, for up to kSecondsToStop, until no other process writes to a run's folder: the run of an earlier command that
// was killed may still be saving its last step.
void await_free_run(const std::string& folder);

// Output of both kinds is appended to `log`. The child has a process group of its own, so that a signal from the
// terminal reaches it once, through us.
ChildEnd run_child(const std::vector<std::string>& command, const std::string& log);

}  // namespace athanor
