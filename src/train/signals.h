// Stop signals: SIGTERM, SIGUSR1, SIGINT, SIGHUP (unless it is ignored, as nohup does) and SIGXCPU ask the run to stop
// after a checkpoint; a second one of the first three exits at once.
// The only process-wide state of the program: handlers can reach nothing else.
#pragma once
#include <chrono>
#include <optional>

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

}  // namespace athanor
