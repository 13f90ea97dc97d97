#include "command/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/layout.h"

namespace athanor {
namespace {

constexpr int kNotStarted = 127;    // the shell's code for a program that cannot be started
constexpr int kSecondsToStop = 30;  // checkpoint.exit_signal_budget plus the time of a step in progress

// True under nohup. The kernel queues an ignored signal while it is blocked.
bool ignores_hangup() {
  struct sigaction action {};
  sigaction(SIGHUP, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

// Blocks signals for its lifetime, so that they can be waited for with sigtimedwait instead of handled.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&waited_);
    for (const int s : {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGCHLD})
      if (s != SIGHUP || !ignores_hangup()) sigaddset(&waited_, s);
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

// Runs in the child between fork and exec: only async-signal-safe calls, since other threads may hold locks.
[[noreturn]] void become(char* const* arguments, const Fd& output, pid_t parent, const sigset_t& mask) {
  setpgid(0, 0);
  end_with_parent(parent);
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 && dup2(output.get(), STDOUT_FILENO) >= 0 &&
      dup2(output.get(), STDERR_FILENO) >= 0) {
    pthread_sigmask(SIG_SETMASK, &mask, nullptr);
    execv(arguments[0], arguments);
  }
  _exit(kNotStarted);
}

pid_t spawn(const std::vector<std::string>& command, const std::string& log, const sigset_t& mask) {
  const Fd output = create_below(parent_dir(log), base_name(log), O_WRONLY | O_APPEND);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid(), child = ::fork();
  if (child == 0) become(arguments.data(), output, parent, mask);
  if (child < 0) throw_io(cat("starting ", command[0], " with its output in"), log, errno);
  return child;
}

}  // namespace

void end_with_parent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kNotStarted);  // the parent ended before prctl
}

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

void await_free_run(const std::string& folder) {
  const std::string name(kLockName), path = cat(folder, "/", name);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kSecondsToStop);
  for (bool logged = false; access(path.c_str(), F_OK) == 0 && std::chrono::steady_clock::now() < end;) {
    if (lock_file(create_below(folder, name, O_RDWR), path, cat("two runs in ", folder))) return;
    if (!std::exchange(logged, true)) log::info("waiting for the process that still writes to ", folder);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

void require_same_values(const std::string& folder, const Config& now) {
  constexpr int64_t kMaxBytes = int64_t{64} << 20;
  const std::string path = folder + "/config.resolved.json";
  if (!std::filesystem::is_regular_file(path)) return;
  for (const ConfigChange& c : resume_changes(read_file(path, kMaxBytes), now))
    if (c.rule != OnResume::free || c.key == "train_iters")
      throw Error(cat(path, ": the run has ", c.key, " ", c.old_value, ", now it is ", c.new_value,
                      "; set it back, or give another --output"),
                  Exit::usage);
}

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
