#include "command/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"

namespace athanor {
namespace {

// Blocks signals for its lifetime, so that they can be waited for instead of handled.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&waited_);
    for (const int s : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGCHLD}) sigaddset(&waited_, s);
    pthread_sigmask(SIG_BLOCK, &waited_, &before_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  const sigset_t& before() const { return before_; }
  int wait() const {
    for (;;) {
      const int s = sigwaitinfo(&waited_, nullptr);
      if (s > 0) return s;
    }
  }

 private:
  sigset_t waited_{}, before_{};
};

pid_t spawn(const std::vector<std::string>& command, const std::string& log, const sigset_t& mask) {
  const Fd output = create_below(parent_dir(log), base_name(log), O_WRONLY | O_APPEND);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &mask);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t child = -1;
  const int problem = posix_spawn(&child, command[0].c_str(), &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (problem != 0) throw_io(cat("starting ", command[0], " with its output in"), log, problem);
  return child;
}

}  // namespace

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

ChildEnd run_child(const std::vector<std::string>& command, const std::string& log) {
  const BlockedSignals signals;
  const pid_t child = spawn(command, log, signals.before());
  ChildEnd end;
  for (;;) {
    const int signal = signals.wait();
    if (signal != SIGCHLD) {
      end.stopped = true;
      kill(child, signal);
      continue;
    }
    int status = 0;
    if (waitpid(child, &status, WNOHANG) != child) continue;
    end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return end;
  }
}

}  // namespace athanor
