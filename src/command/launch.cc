// athanor launch --ranks N train CONFIG.json ...: N ranks of a command on this machine.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "base/log.h"
#include "base/sha256.h"
#include "comm/socket.h"
#include "command/command.h"

namespace athanor {
namespace {

struct Args {
  int ranks = 0;
  std::vector<std::string> command;
};

// Ranks learn of each other's failures by themselves; who has not left by then is killed.
constexpr double kSecondsToLeave = 30;

constexpr int kForwarded[] = {SIGTERM, SIGINT, SIGUSR1};

struct Child {
  pid_t pid = -1;
  bool running = true;
};

void set_variable(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

[[noreturn]] void become_rank(int rank, std::vector<std::string>& command) {
  set_variable("RANK", cat(rank));
  set_variable("LOCAL_RANK", cat(rank));
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  setpgid(0,
          0);  // Ctrl-C reaches the launcher alone, which passes it on once: a second one would end the ranks at once
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // ranks do not outlive it
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execv("/proc/self/exe", argv.data());
  log::error("launch: cannot start this program again: ", std::strerror(errno));
  _exit(int(Exit::error));
}

int exit_code(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

// Waits for all; the code of the rank that failed first, where "a peer was lost" only says that another did.
int await(std::vector<Child>& children, const sigset_t& signals) {
  int code = 0;
  std::optional<Deadline> patience;
  const auto send = [&](int signal) {
    for (const Child& c : children)
      if (c.running) kill(c.pid, signal);
  };
  while (std::any_of(children.begin(), children.end(), [](const Child& c) { return c.running; })) {
    const timespec moment{0, 50'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &moment);
    if (signal > 0 && signal != SIGCHLD) send(signal);
    for (size_t r = 0; r < children.size(); ++r) {
      int status = 0;
      if (!children[r].running || waitpid(children[r].pid, &status, WNOHANG) != children[r].pid) continue;
      children[r].running = false;
      const int its = exit_code(status);
      if (its == 0 || its == int(Exit::requeue)) {
        code = std::max(code, its);
        continue;
      }
      if (its > 128)
        log::error("launch: rank ", r, " was ended by signal ", its - 128, " (", strsignal(its - 128), ")");
      if (code == 0 || code == int(Exit::requeue) || code == int(Exit::peer_lost)) code = its;
      if (!patience) patience = after(kSecondsToLeave);
    }
    if (patience && Clock::now() > *patience) {
      send(SIGKILL);
      patience = after(kSecondsToLeave);
    }
  }
  return code;
}

// Free now; should somebody take it, the ranks look for one near it.
int free_port() {
  const auto listener = listen_on(true, 0);
  if (!listener) throw Error("launch: this machine has no free port");
  return port_of(*listener);
}

Exit launch(Args args) {
  args.command.insert(args.command.begin(), "athanor");
  set_variable("WORLD_SIZE", cat(args.ranks));
  set_variable("LOCAL_WORLD_SIZE", cat(args.ranks));
  set_variable("MASTER_ADDR", "127.0.0.1");
  set_variable("MASTER_PORT", cat(free_port()));
  set_variable("ATHANOR_SECRET", to_hex(random_bytes(32)));
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  for (const int s : kForwarded) sigaddset(&signals, s);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  std::vector<Child> children;
  for (int r = 0; r < args.ranks; ++r) {
    const pid_t pid = fork();
    if (pid == 0) become_rank(r, args.command);
    if (pid < 0) {
      const std::string why = std::strerror(errno);
      for (const Child& c : children) kill(c.pid, SIGKILL);
      throw Error(cat("launch: starting rank ", r, ": ", why));
    }
    children.push_back({pid});
  }
  return static_cast<Exit>(await(children, signals));
}

}  // namespace

void add_launch(Cli& cli) {
  auto args = std::make_shared<Args>();
  Verb verb =
      cli.app.add_verb("launch", "run a command on several ranks of this machine: launch --ranks 4 train CONFIG");
  verb.add_option("-n,--ranks", args->ranks, "number of processes").required().check(in_range(1, 4096));
  verb.take_rest();
  verb.on_chosen([&cli, args, verb] {
    args->command = verb.rest();
    if (args->command.empty()) usage_error("launch", "the command of the ranks is missing, such as: train CONFIG.json");
    cli.action = [args] { return launch(*args); };
  });
}

}  // namespace athanor
