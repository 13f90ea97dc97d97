#include "train/signals.h"

#include <unistd.h>
#include <ctime>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/thread.h"

namespace athanor {
namespace {

std::atomic<int> stop_signal{0};
std::atomic<int64_t> stop_time{0};  // nanoseconds of the steady clock
std::array<struct sigaction, kStopSignals.size()> previous_actions;
bool installed = false;

// A closing terminal and its shell both send SIGHUP; above its CPU time limit a process gets SIGXCPU every second.
// Repetitions of these signals do not count as second requests.
bool comes_repeatedly(int signal) { return signal == SIGHUP || signal == SIGXCPU; }

int64_t nanoseconds(const timespec& time) { return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec; }

// Async-signal-safe: lock-free atomics, clock_gettime and _exit only.
void on_signal(int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (stop_signal.load() != 0) {
    if (comes_repeatedly(signal) || nanoseconds(now) - stop_time.load() < kOneRequest.count()) return;
    _exit(128 + signal);
  }
  stop_time.store(nanoseconds(now));
  stop_signal.store(signal);
}

}  // namespace

StopSignals::StopSignals() {
  CHECK(!installed, "stop signals are installed once at a time");
  installed = true;
  stop_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    sigaction(kStopSignals[i], nullptr, &previous_actions[i]);
    if (kStopSignals[i] == SIGHUP && previous_actions[i].sa_handler == SIG_IGN) continue;  // nohup: must not stop
    sigaction(kStopSignals[i], &action, nullptr);
  }
  sigset_t blocked;  // by `athanor launch`, so that a signal that comes before the handler is kept for it
  sigemptyset(&blocked);
  for (const int signal : kStopSignals) sigaddset(&blocked, signal);
  pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
}

StopSignals::~StopSignals() {
  installed = false;
  if (leaving_) return;
  for (size_t i = 0; i < kStopSignals.size(); ++i) sigaction(kStopSignals[i], &previous_actions[i], nullptr);
}

void StopSignals::leave() {
  leaving_ = true;
  for (const int signal : kStopSignals) std::signal(signal, SIG_IGN);
}

std::optional<StopSignals::Received> StopSignals::received() const {
  const int signal = stop_signal.load();
  if (signal == 0) return std::nullopt;
  return Received{signal, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(stop_time.load()))};
}

StopAtStart::StopAtStart(const StopRequests& signals, std::function<void(int signal)> last_words)
    : watch_(start_thread<std::jthread>("stop signals", [&signals, last_words = std::move(last_words)](
                                                            const std::stop_token& over) {
        std::mutex mutex;
        std::condition_variable_any changed;
        std::unique_lock lock(mutex);
        while (!changed.wait_for(lock, over, std::chrono::milliseconds(100), [&] { return over.stop_requested(); })) {
          const auto received = signals.received();
          if (!received) continue;
          last_words(received->signal);
          std::fflush(nullptr);
          std::_Exit(int(Exit::requeue));
        }
      })) {}

}  // namespace athanor
