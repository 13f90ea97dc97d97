// Stop signals: SIGTERM, SIGUSR1, SIGINT, SIGHUP (unless it is ignored, as nohup does) and SIGXCPU ask the run to stop
// after a checkpoint; a second one of the first three exits at once.
// The only process-wide state of the program: handlers can reach nothing else.
#pragma once
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

namespace athanor {

// Installs the handlers for its lifetime, one at a time; afterwards the previous ones are back.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  struct Received {
    int signal;
    std::chrono::steady_clock::time_point when;
  };
  std::optional<Received> received() const;
  // From now until the process ends signals do nothing: the run has decided how it ends, and a launcher that ends the
  // other ranks when the first leaves with a code other than 0 must not change theirs.
  void leave();

 private:
  bool leaving_ = false;
};

// While a run starts there is nothing to save: for its lifetime a stop signal ends the process with Exit::requeue
// within a tenth of a second, whatever its other threads are at (reading a checkpoint, trying products, waiting for
// ranks).
class StopAtStart {
 public:
  // last_words is called on a thread of its own before the process ends.
  StopAtStart(const StopSignals&, std::function<void(int signal)> last_words);

 private:
  std::jthread watch_;
};

}  // namespace athanor
