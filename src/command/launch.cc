// athanor launch --ranks N train CONFIG.json ...: N ranks of a command on this machine.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "base/crypto.h"
#include "base/log.h"
#include "comm/socket.h"
#include "command/child.h"
#include "command/command.h"
#include "command/newest_checkpoint.h"
#include "command/restart_pause.h"

namespace athanor {
namespace {

struct LaunchArgs {
  int ranks = 0;
  int max_restarts = 0;
  std::vector<std::string> command;
};

// Timing after a rank has failed. The other ranks learn of the failure within a second, except if the rank failed
// before it joined: then they wait for it until SIGTERM ends them. A rank that hangs ends itself after ten seconds; a
// rank that still runs after kSecondsToLeave is killed. A stopped rank (SIGSTOP) can do neither.
constexpr double kSecondsToAsk = 4, kSecondsToLeave = 20, kSecondsToLeaveStopped = 2;

constexpr int kForwarded[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};

struct Child {
  pid_t pid = -1;
  bool running = true, stopped = false;
  bool asked = false, killed = false;  // the launcher sent SIGTERM; SIGKILL
};

void set_variable(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

// Descriptors of the launcher that rank 0 inherits.
struct Inherited {
  const Fd& listener;           // inherited so that nobody can take its port first
  const Fd& newest_checkpoint;  // see newest_checkpoint.h
};

[[noreturn]] void become_rank(int rank, pid_t launcher, std::vector<std::string>& command, const Inherited& of_rank_0) {
  set_variable("RANK", cat(rank));
  set_variable("LOCAL_RANK", cat(rank));
  if (rank == 0) {
    const auto inherit = [](const Fd& fd) { return cat(dup(fd.get())); };  // the duplicate stays open across exec
    set_variable("ATHANOR_LISTENER", inherit(of_rank_0.listener));
    set_variable(kNewestCheckpointVariable, inherit(of_rank_0.newest_checkpoint));
  }
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  setpgid(0, 0);  // Ctrl-C reaches only the launcher, which forwards it
  end_with_parent(launcher);
  sigset_t blocked;
  sigemptyset(&blocked);
  if (command[1] == "train")  // unblocks stop signals once it handles them
    for (const int s : kForwarded) sigaddset(&blocked, s);
  sigprocmask(SIG_SETMASK, &blocked, nullptr);
  execv("/proc/self/exe", argv.data());
  log::error("launch: the program of a rank cannot be started: ", std::strerror(errno));
  _exit(int(Exit::error));
}

int exit_code(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

// Updates the state of a child; returns its exit code once it has ended.
std::optional<int> look_at(Child& c) {
  int status = 0;
  if (!c.running || waitpid(c.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != c.pid) return std::nullopt;
  c.stopped = WIFSTOPPED(status);
  if (WIFSTOPPED(status) || WIFCONTINUED(status)) return std::nullopt;
  c.running = false;
  return exit_code(status);
}

// Waits for all ranks. The exit code is that of the rank that failed first; "a peer was lost" only means that another
// rank failed.
ChildEnd await(std::vector<Child>& children, const sigset_t& signals) {
  int code = 0;
  bool stopped = false;
  std::optional<Deadline> failed;  // time when the first rank failed
  while (std::any_of(children.begin(), children.end(), [](const Child& c) { return c.running; })) {
    const timespec moment{0, 50'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &moment);
    stopped = stopped || (signal > 0 && signal != SIGCHLD);
    for (size_t r = 0; r < children.size(); ++r) {
      Child& c = children[r];
      if (signal > 0 && signal != SIGCHLD && c.running) kill(c.pid, signal);
      const std::optional<int> its = look_at(c);
      if (!its || c.killed || (c.asked && *its == 128 + SIGTERM)) continue;
      if (*its == 0 || *its == int(Exit::requeue)) {
        if (code == 0) code = *its;
        continue;
      }
      if (*its > 128)
        log::error("launch: rank ", r, " was ended by signal ", *its - 128, " (", strsignal(*its - 128), ")");
      if (code == 0 || code == int(Exit::requeue) || code == int(Exit::peer_lost)) code = *its;
      if (!failed) failed = Clock::now();
    }
    const double waited = failed ? std::chrono::duration<double>(Clock::now() - *failed).count() : 0;
    for (size_t r = 0; r < children.size(); ++r) {
      Child& c = children[r];
      if (c.running && !c.asked && waited > kSecondsToAsk) c.asked = kill(c.pid, SIGTERM) == 0;
      if (!c.running || c.killed || waited <= (c.stopped ? kSecondsToLeaveStopped : kSecondsToLeave)) continue;
      log::error("launch: rank ", r, c.stopped ? " is stopped (SIGSTOP)" : " has not exited",
                 " although another rank failed: it was killed");
      c.killed = kill(c.pid, SIGKILL) == 0;
    }
  }
  return {code, stopped};
}

// Starts the ranks with a secret and a port of their own.
std::vector<Child> start_ranks(LaunchArgs& args, const Fd& newest_checkpoint) {
  auto listener = listen_on("127.0.0.1", 0);
  if (!listener) throw Error("launch: this machine has no free port");
  set_variable("MASTER_PORT", cat(port_of(*listener)));
  set_variable("ATHANOR_SECRET", to_hex(random_bytes(32)));
  std::vector<Child> children;
  const pid_t launcher = getpid();
  for (int r = 0; r < args.ranks; ++r) {
    const pid_t pid = ::fork();
    if (pid == 0) become_rank(r, launcher, args.command, {*listener, newest_checkpoint});
    if (pid < 0) {
      const std::string why = std::strerror(errno);
      for (const Child& c : children) kill(c.pid, SIGKILL);
      throw Error(cat("launch: starting rank ", r, ": ", why));
    }
    children.push_back({pid});
  }
  return children;
}

// False if the ranks would end the same way again: a wrong command line, or a loss that diverged.
bool may_succeed_again(int code) { return code == int(Exit::error) || code == int(Exit::peer_lost) || code > 128; }

// Waits this long, or until a stop signal; returns the signal, or 0.
int wait_for_signal(const sigset_t& signals, double seconds) {
  for (const Deadline end = after(seconds);;) {
    const int left = milliseconds_left(end);
    const timespec time{left / 1000, left % 1000 * 1'000'000L};
    if (const int signal = sigtimedwait(&signals, nullptr, &time); signal > 0 && signal != SIGCHLD) return signal;
    if (left == 0) return 0;
  }
}

Exit launch(LaunchArgs args) {
  sigset_t signals;  // blocked until the ranks run, then forwarded to them
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  for (const int s : kForwarded) sigaddset(&signals, s);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  if (args.ranks > 1 && std::ranges::count(args.command, "-") > 0)
    throw Error("launch: ranks cannot share standard input; write the configuration to a file and name it instead of -",
                Exit::usage);
  args.command.insert(args.command.begin(), "athanor");
  if (const std::optional<int> code = refuse_words(args.command))
    return static_cast<Exit>(*code);  // reported once, not by every rank
  set_variable("WORLD_SIZE", cat(args.ranks));
  set_variable("LOCAL_WORLD_SIZE", cat(args.ranks));
  set_variable("MASTER_ADDR", "127.0.0.1");
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  const Fd newest_checkpoint(memfd_create("athanor newest checkpoint", MFD_CLOEXEC));
  if (!newest_checkpoint) throw Error(cat("launch: memory shared with rank 0: ", std::strerror(errno)));
  RestartPause pause;
  int64_t reached = -1;  // largest step of a checkpoint that any start of the ranks wrote
  for (int starts = 0, restarts = 0;; ++starts, ++restarts) {
    const Clock::time_point begun = Clock::now();
    set_variable("TORCHELASTIC_RESTART_COUNT", cat(starts));
    std::vector<Child> children = start_ranks(args, newest_checkpoint);
    const ChildEnd end = await(children, signals);
    std::string progress;
    if (const int64_t newest = read_newest_checkpoint(newest_checkpoint.get()); newest > reached) {
      reached = newest, restarts = 0;
      progress = cat(" since the checkpoint of step ", newest);
    }
    if (end.stopped || restarts == args.max_restarts || !may_succeed_again(end.code))
      return static_cast<Exit>(end.code);
    const double seconds = pause.after(std::chrono::duration<double>(Clock::now() - begun).count());
    log::warn("launch: the ranks ended with code ", end.code, " and are started again (restart ", restarts + 1, " of ",
              args.max_restarts, progress, ")", seconds > 0 ? cat(" after a pause of ", seconds, " s") : "");
    if (const int signal = wait_for_signal(signals, seconds); signal > 0) {
      log::warn("launch: signal ", signal, " (", strsignal(signal), "): the ranks are not started again");
      return static_cast<Exit>(end.code);
    }
  }
}

}  // namespace

void add_launch(Cli& cli) {
  auto args = std::make_shared<LaunchArgs>();
  Verb verb =
      cli.app.add_verb("launch", "run a command on several ranks of this machine: launch --ranks 4 train CONFIG");
  verb.add_option("-n,--ranks", args->ranks, "number of processes").required().check(in_range(1, 4096));
  verb.add_option(
          "--max-restarts", args->max_restarts,
          "start all ranks again this many times after one failed or was killed, counted anew after each new "
          "checkpoint; a training run resumes from its newest checkpoint, after a pause of 1, 2, 4, ... 30 s, or none "
          "if it ran more than a minute; default: 0")
      .check(in_range(0, 1'000'000));
  verb.take_rest();
  verb.on_chosen([&cli, args, verb] {
    args->command = verb.rest();
    if (args->command.empty()) usage_error("launch", "the command of the ranks is missing, such as: train CONFIG.json");
    cli.action = [args] { return launch(*args); };
  });
}

}  // namespace athanor
