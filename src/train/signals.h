// Stop signals: SIGTERM, SIGUSR1, SIGINT, SIGHUP (unless ignored, as under nohup) and SIGXCPU stop the run after a
// checkpoint; a second SIGTERM, SIGUSR1 or SIGINT that arrives later than kOneRequest exits at once. This is the only
// process-wide state of the program, because signal handlers cannot access anything else.
#pragma once
#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <thread>

namespace athanor {

inline constexpr std::array kStopSignals = {SIGTERM, SIGUSR1, SIGINT, SIGHUP, SIGXCPU};

// Signals within this time after the first count as one request: `timeout`, mpirun and Slurm signal a process and then
// its process group.
inline constexpr std::chrono::nanoseconds kOneRequest = std::chrono::seconds(1);

// Interface through which a run learns that it should stop.
class StopRequests {
 public:
  virtual ~StopRequests() = default;
  struct Received {
    int signal;  // one of kStopSignals
    std::chrono::steady_clock::time_point when;
  };
  virtual std::optional<Received> received() const = 0;
  virtual void leave() {}  // called when the run is over: later requests are ignored
};

// Installs the handlers for its lifetime, one instance at a time, then restores the previous ones.
class StopSignals final : public StopRequests {
 public:
  StopSignals();
  ~StopSignals() override;
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  std::optional<Received> received() const override;
  // Ignores signals until the process ends: the exit code is decided, and a launcher that kills the other ranks when
  // the first one exits with a nonzero code must not change their exit codes.
  void leave() override;

 private:
  bool leaving_ = false;
};

// While it exists, during startup, a stop signal ends the process with Exit::requeue within a tenth of a second, even
// while other threads read a checkpoint, autotune or wait for ranks: there is nothing to save.
class StopAtStart {
 public:
  // last_words is called on another thread before the process ends.
  StopAtStart(const StopRequests&, std::function<void(int signal)> last_words);

 private:
  std::jthread watch_;
};

}  // namespace athanor
